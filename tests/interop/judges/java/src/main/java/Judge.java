import com.azure.core.amqp.AmqpTransportType;
import com.azure.core.amqp.models.AmqpAnnotatedMessage;
import com.azure.core.util.BinaryData;
import com.azure.messaging.servicebus.*;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.*;
import com.azure.messaging.servicebus.models.*;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Scenarios of azure-messaging-servicebus against a namespace, its connection string in CONNECTION: a JSON line each. */
public class Judge {
    interface Scenario {
        void run() throws Exception;
    }

    static final Duration WAIT = Duration.ofSeconds(30);
    static final ServiceBusClientBuilder BUILDER =
        new ServiceBusClientBuilder().connectionString(System.getenv("CONNECTION"));

    static void check(boolean held, String what) {
        if (!held) {
            throw new IllegalStateException(what);
        }
    }

    static void send(String queue, ServiceBusMessage... messages) {
        try (ServiceBusSenderClient sender = BUILDER.sender().queueName(queue).buildClient()) {
            sender.sendMessages(List.of(messages));
        }
    }

    static ServiceBusMessage text(String body) {
        return new ServiceBusMessage(BinaryData.fromString(body));
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

    static void settle() {
        send("orders", text("0"), text("1"), text("2"), text("3"));
        try (ServiceBusReceiverClient receiver = BUILDER.receiver().queueName("orders").disableAutoComplete().buildClient()) {
            List<ServiceBusReceivedMessage> taken =
                receiver.receiveMessages(4, WAIT).stream().toList();
            check(taken.size() == 4, taken.size() + " messages received");
            receiver.renewMessageLock(taken.get(0));
            receiver.complete(taken.get(0));
            receiver.abandon(taken.get(1));
            receiver.defer(taken.get(2));
            receiver.deadLetter(taken.get(3), new DeadLetterOptions().setDeadLetterReason("bad"));
            receiver.complete(receiver.receiveDeferredMessage(taken.get(2).getSequenceNumber()));
            receiver.receiveMessages(1, WAIT).forEach(receiver::complete);
        }
    }

    static void deadLetters() {
        try (ServiceBusReceiverClient receiver = BUILDER.receiver().queueName("orders")
                .subQueue(SubQueue.DEAD_LETTER_QUEUE).disableAutoComplete().buildClient()) {
            ServiceBusReceivedMessage dead = receiver.receiveMessages(1, WAIT).stream().findFirst().get();
            check("bad".equals(dead.getDeadLetterReason()), "the reason is " + dead.getDeadLetterReason());
            receiver.complete(dead);
        }
    }

    static void peekAndDelete() {
        send("orders", text("a"), text("b"));
        try (ServiceBusReceiverClient receiver = BUILDER.receiver().queueName("orders")
                .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient()) {
            check(receiver.peekMessages(5).stream().count() == 2, "not 2 messages seen");
            check(receiver.receiveMessages(2, WAIT).stream().count() == 2, "not 2 messages taken");
        }
    }

    static void schedule() {
        try (ServiceBusSenderClient sender = BUILDER.sender().queueName("orders").buildClient()) {
            sender.cancelScheduledMessage(sender.scheduleMessage(text("later"), OffsetDateTime.now().plusHours(1)));
        }
    }

    static void sessions() {
        send("sessions", text("x").setSessionId("blue"));
        try (ServiceBusSessionReceiverClient accepting =
                BUILDER.sessionReceiver().queueName("sessions").disableAutoComplete().buildClient();
            ServiceBusReceiverClient receiver = accepting.acceptNextSession()) {
            receiver.setSessionState("state".getBytes());
            check("state".equals(new String(receiver.getSessionState())), "another state");
            receiver.renewSessionLock();
            receiver.receiveMessages(1, WAIT).forEach(receiver::complete);
        }
    }

    static void topic() {
        try (ServiceBusSenderClient sender = BUILDER.sender().topicName("events").buildClient();
            ServiceBusReceiverClient receiver = BUILDER.receiver().topicName("events").subscriptionName("all")
                .disableAutoComplete().buildClient()) {
            sender.sendMessage(text("t"));
            List<ServiceBusReceivedMessage> taken =
                receiver.receiveMessages(1, WAIT).stream().toList();
            check(taken.size() == 1, "nothing received");
            receiver.complete(taken.get(0));
        }
    }

    static void transactions() {
        send("orders", text("work"));
        try (ServiceBusSenderClient sender = BUILDER.sender().queueName("orders").buildClient();
            ServiceBusReceiverClient receiver =
                BUILDER.receiver().queueName("orders").disableAutoComplete().buildClient()) {
            ServiceBusReceivedMessage work = receiver.receiveMessages(1, WAIT).stream().findFirst().get();
            ServiceBusTransactionContext first = receiver.createTransaction();
            receiver.complete(work, new CompleteOptions().setTransactionContext(first));
            receiver.commitTransaction(first);
            ServiceBusTransactionContext second = sender.createTransaction();
            sender.sendMessage(text("result"), second);
            check(receiver.peekMessage() == null, "a message of an open transaction is seen");
            sender.commitTransaction(second);
            List<ServiceBusReceivedMessage> results =
                receiver.receiveMessages(1, WAIT).stream().toList();
            check(results.size() == 1 && "result".equals(results.get(0).getBody().toString()), "no result");
            receiver.complete(results.get(0));
        }
    }

    static void scheduleInTransaction() {
        OffsetDateTime later = OffsetDateTime.now().plusHours(1);
        try (ServiceBusSenderClient sender = BUILDER.sender().queueName("orders").buildClient();
            ServiceBusReceiverClient receiver =
                BUILDER.receiver().queueName("orders").disableAutoComplete().buildClient()) {
            ServiceBusTransactionContext first = sender.createTransaction();
            sender.scheduleMessage(text("taken back"), later, first);
            sender.rollbackTransaction(first);
            check(receiver.peekMessage() == null, "a message was scheduled in spite of the rollback");
            ServiceBusTransactionContext second = sender.createTransaction();
            long number = sender.scheduleMessage(text("later"), later, second);
            check(receiver.peekMessage() == null, "a message of an open transaction is seen");
            sender.commitTransaction(second);
            check(receiver.peekMessage().getSequenceNumber() == number, "another number");
            sender.cancelScheduledMessage(number);
        }
    }

    static void asynchronous() {
        try (ServiceBusSenderAsyncClient sender = BUILDER.sender().queueName("orders").buildAsyncClient();
            ServiceBusReceiverAsyncClient receiver =
                BUILDER.receiver().queueName("orders").disableAutoComplete().buildAsyncClient()) {
            sender.sendMessage(text("a")).then(sender.sendMessage(text("b"))).block(WAIT);
            List<String> came = receiver.receiveMessages()
                .concatMap(one -> receiver.complete(one).thenReturn(one.getBody().toString()))
                .take(2).collectList().block(WAIT);
            check(came.equals(List.of("a", "b")), "other messages: " + came);
        }
    }

    static String next(BlockingQueue<String> came) throws InterruptedException {
        return came.poll(WAIT.toSeconds(), TimeUnit.SECONDS);
    }

    /** What a handler has taken is completed behind its back. */
    static void untilEmpty(String queue) throws InterruptedException {
        OffsetDateTime end = OffsetDateTime.now().plus(WAIT);
        try (ServiceBusReceiverClient receiver = BUILDER.receiver().queueName(queue).buildClient()) {
            while (receiver.peekMessage(0) != null) {
                check(OffsetDateTime.now().isBefore(end), "it was not completed");
                Thread.sleep(50);
            }
        }
    }

    /** A message whose handler fails comes again; then it is completed. */
    static void processor() throws Exception {
        BlockingQueue<String> came = new LinkedBlockingQueue<>();
        try (ServiceBusProcessorClient processor = BUILDER.processor().queueName("orders").processMessage(context -> {
            came.add(context.getMessage().getBody() + " " + context.getMessage().getDeliveryCount());
            check(context.getMessage().getDeliveryCount() > 0, "not this time");
        }).processError(context -> { }).buildProcessorClient()) {
            processor.start();
            send("orders", text("work"));
            check("work 0".equals(next(came)) && "work 1".equals(next(came)), "not delivered twice");
            untilEmpty("orders");
        }
    }

    static void sessionProcessor() throws Exception {
        BlockingQueue<String> came = new LinkedBlockingQueue<>();
        for (String session : List.of("green", "red")) {
            send("sessions", text("1").setSessionId(session), text("2").setSessionId(session));
        }
        try (ServiceBusProcessorClient processor = BUILDER.sessionProcessor().queueName("sessions")
                .maxConcurrentSessions(1).processMessage(context -> {
                    came.add(context.getMessage().getSessionId() + " " + context.getMessage().getBody());
                }).sessionIdleTimeout(Duration.ofSeconds(2)).processError(context -> { }).buildProcessorClient()) {
            processor.start();
            for (String body : List.of("green 1", "green 2", "red 1", "red 2")) {
                String found = next(came);
                check(body.equals(found), found + " came instead of " + body);
            }
        }
    }

    /** Its administration client drops the port, so the namespace has port 443 besides. */
    static void administration() {
        ServiceBusAdministrationClient client =
            new ServiceBusAdministrationClientBuilder().connectionString(withoutEmulator()).buildClient();
        client.createQueue("made", new CreateQueueOptions().setMaxDeliveryCount(4).setLockDuration(Duration.ofSeconds(30)));
        QueueProperties found = client.getQueue("made");
        check(found.getMaxDeliveryCount() == 4 && found.getLockDuration().toSeconds() == 30, "other settings");
        check(client.updateQueue(found.setMaxDeliveryCount(5)).getMaxDeliveryCount() == 5, "not updated");
        send("made", text("x"));
        check(client.getQueueRuntimeProperties("made").getActiveMessageCount() == 1, "another count");
        check(client.listQueues().stream().anyMatch(one -> one.getName().equals("made")), "not listed");
        client.createSubscription("events", "made", "large", new CreateSubscriptionOptions(),
            new CreateRuleOptions(new SqlRuleFilter("amount > 1000")).setAction(new SqlRuleAction("SET large = TRUE")));
        RuleProperties rule = client.listRules("events", "made").stream().findFirst().get();
        check("amount > 1000".equals(((SqlRuleFilter) rule.getFilter()).getSqlExpression()), "another filter");
        client.deleteSubscription("events", "made");
        client.deleteQueue("made");
        check(!client.getQueueExists("made"), "not deleted");
    }

    static void rules() {
        try (ServiceBusRuleManagerClient client =
                BUILDER.ruleManager().topicName("events").subscriptionName("all").buildClient()) {
            client.createRule("german", new CreateRuleOptions(new CorrelationRuleFilter().setLabel("DE")));
            client.deleteRule("$Default");
            List<RuleProperties> found = client.listRules().stream().toList();
            check(found.size() == 1 && "german".equals(found.get(0).getName()), "other rules");
            client.createRule("$Default", new CreateRuleOptions(new TrueRuleFilter()));
            client.deleteRule("german");
        }
    }

    static void acrossEntities() {
        ServiceBusClientBuilder builder =
            new ServiceBusClientBuilder().connectionString(System.getenv("CONNECTION")).enableCrossEntityTransactions();
        send("short", text("work"));
        try (ServiceBusReceiverClient receiver = builder.receiver().queueName("short").disableAutoComplete().buildClient();
            ServiceBusSenderClient sender = builder.sender().queueName("orders").buildClient();
            ServiceBusReceiverClient results = BUILDER.receiver().queueName("orders").disableAutoComplete().buildClient()) {
            ServiceBusReceivedMessage work = receiver.receiveMessages(1, WAIT).stream().findFirst().get();
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            sender.sendMessage(text("result"), transaction);
            receiver.complete(work, new CompleteOptions().setTransactionContext(transaction));
            check(results.peekMessage() == null, "a message of an open transaction is seen");
            receiver.commitTransaction(transaction);
            ServiceBusReceivedMessage result = results.receiveMessages(1, WAIT).stream().findFirst().get();
            check("result".equals(result.getBody().toString()), "another result");
            results.complete(result);
        }
    }

    /** A connection string as the service gives them: with it the client uses TLS. */
    static String withoutEmulator() {
        return System.getenv("CONNECTION").replace(";UseDevelopmentEmulator=true", "");
    }

    static void webSocket() {
        ServiceBusClientBuilder builder = new ServiceBusClientBuilder().connectionString(withoutEmulator())
            .customEndpointAddress(System.getenv("ENDPOINT").replace("sb://", "https://"))
            .transportType(AmqpTransportType.AMQP_WEB_SOCKETS);
        try (ServiceBusSenderClient sender = builder.sender().queueName("orders").buildClient();
            ServiceBusReceiverClient receiver =
                builder.receiver().queueName("orders").disableAutoComplete().buildClient()) {
            sender.sendMessage(text("over WebSocket"));
            ServiceBusReceivedMessage message = receiver.receiveMessages(1, WAIT).stream().findFirst().get();
            check("over WebSocket".equals(message.getBody().toString()), "another text");
            receiver.complete(message);
        }
    }

    /** After Microsoft's own live test of what a message carries: every section, to a queue and to a session. */
    static void amqpMessage() {
        for (String queue : List.of("orders", "sessions")) {
            ServiceBusMessage sent = text("annotated").setMessageId("annotated").setCorrelationId("together")
                .setSubject("subject").setTo("to").setReplyTo("replyTo").setContentType("text/plain");
            if (queue.equals("sessions")) {
                sent.setSessionId("amqp").setReplyToSessionId("replyToSessionId");
            }
            AmqpAnnotatedMessage raw = sent.getRawAmqpMessage();
            raw.getHeader().setPriority((short) 2).setFirstAcquirer(true);
            raw.getFooter().putAll(Map.of("footer-1", "value", "footer-2", 7));
            raw.getDeliveryAnnotations().put("delivery", 9);
            raw.getProperties().setContentEncoding("utf-8").setAbsoluteExpiryTime(OffsetDateTime.now().plusDays(1));
            Map<String, Object> given = new HashMap<>();
            given.put("int", 1);
            given.put("long", 2L);
            given.put("double", 0.5);
            given.put("boolean", true);
            given.put("string", "text");
            given.put("char", 'c');
            given.put("short", (short) 3);
            given.put("byte", (byte) 4);
            given.put("uuid", UUID.randomUUID());
            given.put("date", new Date(0));
            sent.getApplicationProperties().putAll(given);
            send(queue, sent);
            try (ServiceBusSessionReceiverClient accepting =
                    BUILDER.sessionReceiver().queueName("sessions").disableAutoComplete().buildClient();
                ServiceBusReceiverClient receiver = queue.equals("sessions") ? accepting.acceptSession("amqp")
                    : BUILDER.receiver().queueName(queue).disableAutoComplete().buildClient()) {
                ServiceBusReceivedMessage came = receiver.receiveMessages(1, WAIT).stream().findFirst().get();
                AmqpAnnotatedMessage found = came.getRawAmqpMessage();
                check(found.getFooter().equals(raw.getFooter()), "another footer: " + found.getFooter());
                check(found.getHeader().getPriority() == 2, "another priority");
                check(came.getApplicationProperties().equals(given), "other properties: " + came.getApplicationProperties());
                check("annotated".equals(came.getMessageId()) && "together".equals(came.getCorrelationId())
                    && "subject".equals(came.getSubject()) && "to".equals(came.getTo())
                    && "replyTo".equals(came.getReplyTo()) && "text/plain".equals(came.getContentType())
                    && "utf-8".equals(found.getProperties().getContentEncoding()), "other fields");
                check(Objects.equals(came.getSessionId(), sent.getSessionId())
                    && Objects.equals(came.getReplyToSessionId(), sent.getReplyToSessionId()), "another session");
                receiver.complete(came);
            }
        }
    }

    /** Numbered messages to four sessions: each is sent until it is accepted, then said. */
    static void stream(int count) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (String session : List.of("a", "b", "c", "d")) {
            Thread thread = new Thread(() -> {
                try (ServiceBusSenderClient sender = BUILDER.sender().queueName("sessions").buildClient()) {
                    for (int number = 0; number < count; ) {
                        String name = session + "-" + number;
                        try {
                            sender.sendMessage(text(name).setMessageId(name).setSessionId(session));
                            System.out.println("{\"accepted\": \"" + name + "\"}");
                            number++;
                        } catch (ServiceBusException | IllegalStateException failure) {
                            System.err.println(failure);
                        }
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 2 && arguments[0].equals("stream")) {
            stream(Integer.parseInt(arguments[1]));
            System.exit(0);
        }
        run("send, receive and settle", Judge::settle);
        run("dead letters", Judge::deadLetters);
        run("peek, receive and delete", Judge::peekAndDelete);
        run("schedule and cancel", Judge::schedule);
        run("sessions", Judge::sessions);
        run("topic", Judge::topic);
        run("transactions", Judge::transactions);
        run("schedule in a transaction", Judge::scheduleInTransaction);
        run("asynchronous client", Judge::asynchronous);
        run("processor", Judge::processor);
        run("session processor", Judge::sessionProcessor);
        run("administration", Judge::administration);
        run("rule manager", Judge::rules);
        run("transaction across entities", Judge::acrossEntities);
        run("WebSocket", Judge::webSocket);
        run("AMQP messages", Judge::amqpMessage);
        System.exit(0);
    }
}
