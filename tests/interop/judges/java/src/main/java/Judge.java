import com.azure.core.util.BinaryData;
import com.azure.messaging.servicebus.*;
import com.azure.messaging.servicebus.models.*;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.List;

/** Scenarios of azure-messaging-servicebus against a namespace, its connection string in CONNECTION: a JSON line each. */
public class Judge {
    interface Scenario {
        void run() throws Exception;
    }

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
                receiver.receiveMessages(4, Duration.ofSeconds(15)).stream().toList();
            check(taken.size() == 4, taken.size() + " messages received");
            receiver.renewMessageLock(taken.get(0));
            receiver.complete(taken.get(0));
            receiver.abandon(taken.get(1));
            receiver.defer(taken.get(2));
            receiver.deadLetter(taken.get(3), new DeadLetterOptions().setDeadLetterReason("bad"));
            receiver.complete(receiver.receiveDeferredMessage(taken.get(2).getSequenceNumber()));
            receiver.receiveMessages(1, Duration.ofSeconds(15)).forEach(receiver::complete);
        }
    }

    static void deadLetters() {
        try (ServiceBusReceiverClient receiver = BUILDER.receiver().queueName("orders")
                .subQueue(SubQueue.DEAD_LETTER_QUEUE).disableAutoComplete().buildClient()) {
            ServiceBusReceivedMessage dead = receiver.receiveMessages(1, Duration.ofSeconds(15)).stream().findFirst().get();
            check("bad".equals(dead.getDeadLetterReason()), "the reason is " + dead.getDeadLetterReason());
            receiver.complete(dead);
        }
    }

    static void peekAndDelete() {
        send("orders", text("a"), text("b"));
        try (ServiceBusReceiverClient receiver = BUILDER.receiver().queueName("orders")
                .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient()) {
            check(receiver.peekMessages(5).stream().count() == 2, "not 2 messages seen");
            check(receiver.receiveMessages(2, Duration.ofSeconds(15)).stream().count() == 2, "not 2 messages taken");
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
            receiver.receiveMessages(1, Duration.ofSeconds(15)).forEach(receiver::complete);
        }
    }

    static void topic() {
        try (ServiceBusSenderClient sender = BUILDER.sender().topicName("events").buildClient();
            ServiceBusReceiverClient receiver = BUILDER.receiver().topicName("events").subscriptionName("all")
                .disableAutoComplete().buildClient()) {
            sender.sendMessage(text("t"));
            List<ServiceBusReceivedMessage> taken =
                receiver.receiveMessages(1, Duration.ofSeconds(15)).stream().toList();
            check(taken.size() == 1, "nothing received");
            receiver.complete(taken.get(0));
        }
    }

    static void transactions() {
        send("orders", text("work"));
        try (ServiceBusSenderClient sender = BUILDER.sender().queueName("orders").buildClient();
            ServiceBusReceiverClient receiver =
                BUILDER.receiver().queueName("orders").disableAutoComplete().buildClient()) {
            ServiceBusReceivedMessage work = receiver.receiveMessages(1, Duration.ofSeconds(15)).stream().findFirst().get();
            ServiceBusTransactionContext first = receiver.createTransaction();
            receiver.complete(work, new CompleteOptions().setTransactionContext(first));
            receiver.commitTransaction(first);
            ServiceBusTransactionContext second = sender.createTransaction();
            sender.sendMessage(text("result"), second);
            check(receiver.peekMessage() == null, "a message of an open transaction is seen");
            sender.commitTransaction(second);
            List<ServiceBusReceivedMessage> results =
                receiver.receiveMessages(1, Duration.ofSeconds(15)).stream().toList();
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

    public static void main(String[] arguments) {
        run("send, receive and settle", Judge::settle);
        run("dead letters", Judge::deadLetters);
        run("peek, receive and delete", Judge::peekAndDelete);
        run("schedule and cancel", Judge::schedule);
        run("sessions", Judge::sessions);
        run("topic", Judge::topic);
        run("transactions", Judge::transactions);
        run("schedule in a transaction", Judge::scheduleInTransaction);
        System.exit(0);
    }
}
