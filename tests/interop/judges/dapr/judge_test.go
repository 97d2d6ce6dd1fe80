// The conformance suites of dapr's own repository for its components of Service Bus: two for pub/sub, one for bindings.
// The connection string is in CONNECTION; settings and operations are those that the repository gives each component.
package dapr

import (
	"os"
	"testing"

	binding "github.com/dapr/components-contrib/bindings/azure/servicebusqueues"
	"github.com/dapr/components-contrib/pubsub"
	"github.com/dapr/components-contrib/pubsub/azure/servicebus/queues"
	"github.com/dapr/components-contrib/pubsub/azure/servicebus/topics"
	bindings_suite "github.com/dapr/components-contrib/tests/conformance/bindings"
	pubsub_suite "github.com/dapr/components-contrib/tests/conformance/pubsub"
	"github.com/dapr/kit/logger"
)

var quiet = logger.NewLogger("judge")

func properties(further map[string]string) map[string]string {
	given := map[string]string{"connectionString": os.Getenv("CONNECTION")}
	for name, value := range further {
		given[name] = value
	}
	return given
}

func publish(t *testing.T, component pubsub.PubSub, name, entity string, further map[string]string) {
	config, err := pubsub_suite.NewTestConfig(name, []string{"bulkpublish", "bulksubscribe"}, map[string]any{
		"pubsubName":             "azure-servicebus",
		"testTopicName":          entity,
		"testTopicForBulkSub":    entity + "-bulk",
		"testMultiTopic1Name":    entity + "-multi1",
		"testMultiTopic2Name":    entity + "-multi2",
		"checkInOrderProcessing": false,
	})
	if err != nil {
		t.Fatal(err)
	}
	pubsub_suite.ConformanceTests(t, properties(further), component, config)
}

func TestTopics(t *testing.T) {
	consumer := map[string]string{"consumerID": "testConsumer"}
	publish(t, topics.NewAzureServiceBusTopics(quiet), "azure.servicebus.topics", "dapr-conf-test", consumer)
}

func TestQueues(t *testing.T) {
	publish(t, queues.NewAzureServiceBusQueues(quiet), "azure.servicebus.queues", "dapr-conf-queue", nil)
}

func TestBinding(t *testing.T) {
	config, err := bindings_suite.NewTestConfig("azure.servicebusqueues", []string{"create", "operations", "read"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	settings := properties(map[string]string{"queueName": "conf-tests", "ttlInSeconds": "60"})
	reading, writing := binding.NewAzureServiceBusQueues(quiet), binding.NewAzureServiceBusQueues(quiet)
	bindings_suite.ConformanceTests(t, settings, reading, writing, config)
}
