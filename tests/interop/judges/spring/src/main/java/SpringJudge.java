import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.models.SubQueue;
import com.azure.spring.messaging.checkpoint.Checkpointer;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Function;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.boot.WebApplicationType;
import org.springframework.cloud.stream.function.StreamBridge;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/**
 * A small application on Spring Cloud Stream's binder for Service Bus, its connection string in CONNECTION: what it
 * found as a JSON line each.
 *
 * `shout` reads `orders`, fails for an order that is bad, and answers to `short`; `results` reads `short` and settles by
 * hand; `all` reads a subscription; `inSession` reads `sessions`.
 */
@Configuration
@EnableAutoConfiguration
public class SpringJudge {
    interface Scenario {
        void run() throws Exception;
    }

    static final long WAIT_SECONDS = 60;
    static final BlockingQueue<Message<String>> RESULTS = new LinkedBlockingQueue<>();
    static final BlockingQueue<Message<String>> EVENTS = new LinkedBlockingQueue<>();
    static final BlockingQueue<Message<String>> IN_SESSION = new LinkedBlockingQueue<>();

    @Bean
    public Function<Message<String>, Message<String>> shout() {
        return message -> {
            check(!message.getPayload().startsWith("bad"), "a bad order");
            return MessageBuilder.withPayload(message.getPayload().toUpperCase())
                .setHeader("country", message.getHeaders().get("country")).build();
        };
    }

    @Bean
    public Consumer<Message<String>> results() {
        return message -> {
            ((Checkpointer) message.getHeaders().get("azure_checkpointer")).success().block();
            RESULTS.add(message);
        };
    }

    @Bean
    public Consumer<Message<String>> all() {
        return EVENTS::add;
    }

    @Bean
    public Consumer<Message<String>> inSession() {
        return IN_SESSION::add;
    }

    static void check(boolean held, String what) {
        if (!held) {
            throw new IllegalStateException(what);
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

    static Message<String> next(BlockingQueue<Message<String>> queue) throws InterruptedException {
        Message<String> message = queue.poll(WAIT_SECONDS, TimeUnit.SECONDS);
        check(message != null, "nothing came");
        return message;
    }

    static void pipe(StreamBridge bridge) throws Exception {
        check(bridge.send("orders-out-0", MessageBuilder.withPayload("work").setHeader("country", "DE").build()), "not sent");
        Message<String> result = next(RESULTS);
        check("WORK".equals(result.getPayload()), "another result: " + result.getPayload());
        check("DE".equals(result.getHeaders().get("country")), "the property is lost");
    }

    static void deadLetters(StreamBridge bridge) throws Exception {
        check(bridge.send("orders-out-0", "bad work"), "not sent");
        try (ServiceBusReceiverClient receiver = new ServiceBusClientBuilder()
                .connectionString(System.getenv("CONNECTION")).receiver().queueName("orders")
                .subQueue(SubQueue.DEAD_LETTER_QUEUE).disableAutoComplete().buildClient()) {
            ServiceBusReceivedMessage dead =
                receiver.receiveMessages(1, Duration.ofSeconds(WAIT_SECONDS)).stream().findFirst().get();
            check("bad work".equals(dead.getBody().toString()), "another dead letter");
            receiver.complete(dead);
        }
    }

    static void topic(StreamBridge bridge) throws Exception {
        check(bridge.send("events-out-0", "news"), "not sent");
        check("news".equals(next(EVENTS).getPayload()), "another event");
    }

    static void sessions(StreamBridge bridge) throws Exception {
        for (String body : new String[] {"first", "second"}) {
            Message<String> message =
                MessageBuilder.withPayload(body).setHeader("azure_service_bus_session_id", "blue").build();
            check(bridge.send("sessions-out-0", message), "not sent");
        }
        check("first".equals(next(IN_SESSION).getPayload()) && "second".equals(next(IN_SESSION).getPayload()), "another order");
    }

    public static void main(String[] arguments) {
        String stream = "spring.cloud.stream.";
        String azure = stream + "servicebus.bindings.";
        Map<String, Object> settings = Map.ofEntries(
            Map.entry("logging.level.root", "off"),
            Map.entry("spring.cloud.azure.servicebus.connection-string", System.getenv("CONNECTION")),
            Map.entry("spring.cloud.function.definition", "shout;results;all;inSession"),
            Map.entry(stream + "output-bindings", "orders;events;sessions"),
            Map.entry(stream + "bindings.shout-in-0.destination", "orders"),
            Map.entry(stream + "bindings.shout-in-0.consumer.max-attempts", "1"),
            Map.entry(azure + "shout-in-0.consumer.requeue-rejected", "true"),
            Map.entry(stream + "bindings.shout-out-0.destination", "short"),
            Map.entry(azure + "shout-out-0.producer.entity-type", "queue"),
            Map.entry(stream + "bindings.results-in-0.destination", "short"),
            Map.entry(azure + "results-in-0.consumer.auto-complete", "false"),
            Map.entry(stream + "bindings.all-in-0.destination", "events"),
            Map.entry(stream + "bindings.all-in-0.group", "all"),
            Map.entry(stream + "bindings.inSession-in-0.destination", "sessions"),
            Map.entry(azure + "inSession-in-0.consumer.session-enabled", "true"),
            Map.entry(stream + "bindings.orders-out-0.destination", "orders"),
            Map.entry(azure + "orders-out-0.producer.entity-type", "queue"),
            Map.entry(stream + "bindings.events-out-0.destination", "events"),
            Map.entry(azure + "events-out-0.producer.entity-type", "topic"),
            Map.entry(stream + "bindings.sessions-out-0.destination", "sessions"),
            Map.entry(azure + "sessions-out-0.producer.entity-type", "queue"));
        ConfigurableApplicationContext application = new SpringApplicationBuilder(SpringJudge.class)
            .web(WebApplicationType.NONE).bannerMode(org.springframework.boot.Banner.Mode.OFF).properties(settings).run();
        StreamBridge bridge = application.getBean(StreamBridge.class);
        run("a function between two queues", () -> pipe(bridge));
        run("dead letters", () -> deadLetters(bridge));
        run("topic with a group", () -> topic(bridge));
        run("sessions", () -> sessions(bridge));
        application.close();
        System.exit(0);
    }
}
