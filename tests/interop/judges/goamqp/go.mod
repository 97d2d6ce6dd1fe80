module sbpair/goamqp

go 1.23

require github.com/Azure/go-amqp v1.4.0
