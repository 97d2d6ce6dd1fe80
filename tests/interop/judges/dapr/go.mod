module sbpair/dapr

go 1.26

require github.com/dapr/components-contrib v1.18.4
