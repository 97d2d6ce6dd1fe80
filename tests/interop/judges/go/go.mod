module sbpair/judge

go 1.23

require github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus v1.10.0
