import com.azure.spring.cloud.service.servicebus.properties.ServiceBusEntityType;
import com.azure.spring.messaging.servicebus.core.ServiceBusTemplate;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Configuration;
import org.springframework.jms.annotation.EnableJms;
import org.springframework.jms.annotation.JmsListener;
import org.springframework.jms.core.JmsTemplate;
import org.springframework.messaging.support.MessageBuilder;

/**
 * A small application on Spring Boot's starter of JMS for Service Bus and on ServiceBusTemplate, its connection string
 * in CONNECTION: what it found as a JSON line each.
 */
@Configuration
@EnableAutoConfiguration
@EnableJms
public class StarterJudge {
    interface Scenario {
        void run() throws Exception;
    }

    static final long WAIT_SECONDS = 60;
    static final BlockingQueue<String> ORDERS = new LinkedBlockingQueue<>();
    static final BlockingQueue<String> EVENTS = new LinkedBlockingQueue<>();

    @JmsListener(destination = "orders")
    public void order(String body) {
        ORDERS.add(body);
    }

    @JmsListener(destination = "events/Subscriptions/all")
    public void event(String body) {
        EVENTS.add(body);
    }

    static void check(boolean held, String what) {
        if (!held) {
            throw new IllegalStateException(what);
        }
    }

    static void expect(BlockingQueue<String> came, String body) throws InterruptedException {
        String found = came.poll(WAIT_SECONDS, TimeUnit.SECONDS);
        check(body.equals(found), found + " came instead of " + body);
    }

    static void run(String name, Scenario scenario) {
        String error = "null";
        try {
            scenario.run();
        } catch (Exception failure) {
            Throwable cause = failure.getCause() == null ? failure : failure.getCause();
            error = "\"" + String.valueOf(cause).replaceAll("[\"\\\\\\s]+", " ") + "\"";
        }
        System.out.println("{\"scenario\": \"" + name + "\", \"error\": " + error + "}");
    }

    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of(
            "logging.level.root", "off",
            "spring.jms.servicebus.connection-string", System.getenv("CONNECTION"),
            "spring.jms.servicebus.pricing-tier", "premium",
            "spring.cloud.azure.servicebus.connection-string", System.getenv("CONNECTION"));
        ConfigurableApplicationContext application = new SpringApplicationBuilder(StarterJudge.class)
            .web(WebApplicationType.NONE).bannerMode(org.springframework.boot.Banner.Mode.OFF).properties(settings).run();
        JmsTemplate jms = application.getBean(JmsTemplate.class);
        jms.setReceiveTimeout(TimeUnit.SECONDS.toMillis(WAIT_SECONDS));
        run("a listener of a queue", () -> {
            jms.convertAndSend("orders", "work");
            expect(ORDERS, "work");
        });
        run("receive", () -> {
            jms.convertAndSend("short", "kept");
            check("kept".equals(jms.receiveAndConvert("short")), "another text");
        });
        run("delivery delay", () -> {
            long begun = System.nanoTime();
            jms.setDeliveryDelay(2000);
            try {
                jms.convertAndSend("orders", "later");
            } finally {
                jms.setDeliveryDelay(-1);
            }
            expect(ORDERS, "later");
            check(System.nanoTime() - begun > 1_500_000_000L, "it came at once");
        });
        run("a listener of a subscription", () -> {
            jms.setPubSubDomain(true);
            try {
                jms.convertAndSend("events", "news");
            } finally {
                jms.setPubSubDomain(false);
            }
            expect(EVENTS, "news");
        });
        run("ServiceBusTemplate", () -> {
            ServiceBusTemplate template = application.getBean(ServiceBusTemplate.class);
            template.setDefaultEntityType(ServiceBusEntityType.QUEUE);
            template.sendAsync("short", MessageBuilder.withPayload("by template").build()).block();
            byte[] found = (byte[]) jms.receiveAndConvert("short");
            check("by template".equals(new String(found)), "another text");
        });
        application.close();
        System.exit(0);
    }
}
