import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.camel.CamelContext;
import org.apache.camel.Exchange;
import org.apache.camel.ProducerTemplate;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.azure.servicebus.ServiceBusComponent;
import org.apache.camel.impl.DefaultCamelContext;

/** Routes of Apache Camel's azure-servicebus, its connection string in CONNECTION: what they found as a JSON line each. */
public class CamelJudge {
    interface Scenario {
        void run() throws Exception;
    }

    static final long WAIT_SECONDS = 60;
    static final String LATER = "CamelAzureServiceBusScheduledEnqueueTime";
    static final CamelContext CONTEXT = new DefaultCamelContext();
    static final Map<String, BlockingQueue<Exchange>> CAME = Map.of(
        "orders", new LinkedBlockingQueue<>(), "dead", new LinkedBlockingQueue<>(), "short", new LinkedBlockingQueue<>(),
        "events", new LinkedBlockingQueue<>(), "sessions", new LinkedBlockingQueue<>());

    static void check(boolean held, String what) {
        if (!held) {
            throw new IllegalStateException(what);
        }
    }

    static Exchange next(String name) throws InterruptedException {
        Exchange found = CAME.get(name).poll(WAIT_SECONDS, TimeUnit.SECONDS);
        check(found != null, "nothing came from " + name);
        return found;
    }

    static void expect(String name, String... bodies) throws InterruptedException {
        for (String body : bodies) {
            String found = next(name).getMessage().getBody(String.class);
            check(body.equals(found), found + " came instead of " + body);
        }
    }

    static void run(String name, Scenario scenario) {
        String error = "null";
        try {
            scenario.run();
        } catch (Exception failure) {
            error = "\"" + String.valueOf(failure).replaceAll("[\"\\\\\\s]+", " ") + "\"";
        }
        System.out.println("{\"scenario\": \"" + name + "\", \"error\": " + error + "}");
    }

    static class Routes extends RouteBuilder {
        private void keep(String address, String name) {
            from("azure-servicebus:" + address).process(exchange -> {
                if (name.equals("orders") && exchange.getMessage().getBody(String.class).startsWith("bad")) {
                    throw new IllegalStateException("a bad message");
                }
                CAME.get(name).add(exchange.copy());
            });
        }

        @Override
        public void configure() {
            errorHandler(noErrorHandler());
            keep("orders?enableDeadLettering=true", "orders");
            keep("orders?subQueue=DEAD_LETTER_QUEUE", "dead");
            keep("short?serviceBusReceiveMode=RECEIVE_AND_DELETE", "short");
            keep("events?serviceBusType=topic&subscriptionName=all", "events");
            keep("sessions?sessionEnabled=true", "sessions");
            from("direct:orders").to("azure-servicebus:orders");
            from("direct:short").to("azure-servicebus:short");
            from("direct:later").to("azure-servicebus:short?producerOperation=scheduleMessages");
            from("direct:events").to("azure-servicebus:events?serviceBusType=topic");
            from("direct:sessions").to("azure-servicebus:sessions?sessionId=blue");
        }
    }

    public static void main(String[] arguments) throws Exception {
        ServiceBusComponent component = new ServiceBusComponent();
        component.getConfiguration().setConnectionString(System.getenv("CONNECTION"));
        CONTEXT.addComponent("azure-servicebus", component);
        CONTEXT.addRoutes(new Routes());
        CONTEXT.start();
        ProducerTemplate producer = CONTEXT.createProducerTemplate();
        run("send and process", () -> {
            producer.sendBodyAndHeader("direct:orders", "work", "country", "DE");
            Exchange found = next("orders");
            check("work".equals(found.getMessage().getBody(String.class)), "another text");
            check("DE".equals(found.getMessage().getHeader("country")), "the property is lost");
        });
        run("a list", () -> {
            producer.sendBody("direct:short", List.of("a", "b", "c"));
            expect("short", "a", "b", "c");
        });
        run("dead letters", () -> {
            producer.sendBody("direct:orders", "bad work");
            expect("dead", "bad work");
        });
        run("scheduled", () -> {
            long begun = System.nanoTime();
            producer.sendBodyAndHeader("direct:later", "later", LATER, java.time.OffsetDateTime.now().plusSeconds(2));
            expect("short", "later");
            check(System.nanoTime() - begun > 1_000_000_000L, "it came at once");
        });
        run("topic", () -> {
            producer.sendBody("direct:events", "news");
            expect("events", "news");
        });
        run("sessions", () -> {
            producer.sendBody("direct:sessions", List.of("first", "second"));
            expect("sessions", "first", "second");
        });
        CONTEXT.stop();
        System.exit(0);
    }
}
