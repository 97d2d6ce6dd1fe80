import com.microsoft.azure.servicebus.ClientFactory;
import com.microsoft.azure.servicebus.ClientSettings;
import com.microsoft.azure.servicebus.ExceptionPhase;
import com.microsoft.azure.servicebus.IMessage;
import com.microsoft.azure.servicebus.IMessageHandler;
import com.microsoft.azure.servicebus.IMessageReceiver;
import com.microsoft.azure.servicebus.IMessageSender;
import com.microsoft.azure.servicebus.IMessageSession;
import com.microsoft.azure.servicebus.ISessionHandler;
import com.microsoft.azure.servicebus.Message;
import com.microsoft.azure.servicebus.MessageHandlerOptions;
import com.microsoft.azure.servicebus.QueueClient;
import com.microsoft.azure.servicebus.ReceiveMode;
import com.microsoft.azure.servicebus.SessionHandlerOptions;
import com.microsoft.azure.servicebus.SubscriptionClient;
import com.microsoft.azure.servicebus.TransactionContext;
import com.microsoft.azure.servicebus.management.ManagementClient;
import com.microsoft.azure.servicebus.management.QueueDescription;
import com.microsoft.azure.servicebus.management.QueueRuntimeInfo;
import com.microsoft.azure.servicebus.primitives.ConnectionStringBuilder;
import com.microsoft.azure.servicebus.primitives.MessagingEntityNotFoundException;
import com.microsoft.azure.servicebus.primitives.MessagingFactory;
import com.microsoft.azure.servicebus.primitives.RetryPolicy;
import com.microsoft.azure.servicebus.primitives.TransportType;
import com.microsoft.azure.servicebus.primitives.Util;
import com.microsoft.azure.servicebus.rules.RuleDescription;
import com.microsoft.azure.servicebus.rules.SqlFilter;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Scenarios of the older com.microsoft.azure:azure-servicebus against a namespace on the service's own ports, its
 * connection string in CONNECTION: a JSON line each. It knows no other ports and no connection without TLS.
 */
public class OldJudge {
    interface Scenario {
        void run() throws Exception;
    }

    static final ConnectionStringBuilder WHERE = new ConnectionStringBuilder(System.getenv("CONNECTION"));
    static final Duration WAIT = Duration.ofSeconds(15);
    static final long WAIT_SECONDS = 60;

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

    static ConnectionStringBuilder at(String entity) {
        return new ConnectionStringBuilder(WHERE.getEndpoint(), entity, WHERE.getSasKeyName(), WHERE.getSasKey());
    }

    static void send(String entity, IMessage... messages) throws Exception {
        IMessageSender sender = ClientFactory.createMessageSenderFromConnectionStringBuilder(at(entity));
        sender.sendBatch(List.of(messages));
        sender.close();
    }

    static IMessageReceiver receiver(String entity) throws Exception {
        return ClientFactory.createMessageReceiverFromConnectionStringBuilder(at(entity), ReceiveMode.PEEKLOCK);
    }

    static IMessage next(IMessageReceiver receiver) throws Exception {
        IMessage message = receiver.receive(WAIT);
        check(message != null, "nothing came");
        return message;
    }

    static String text(IMessage message) {
        return new String(message.getMessageBody().getBinaryData().get(0));
    }

    static void settle() throws Exception {
        Message first = new Message("0");
        first.setProperties(java.util.Map.of("number", 7, "country", "DE"));
        first.setCorrelationId("together");
        send("orders", first, new Message("1"), new Message("2"), new Message("3"));
        IMessageReceiver receiver = receiver("orders");
        IMessage zero = next(receiver);
        check("0".equals(text(zero)) && "together".equals(zero.getCorrelationId()), "another message");
        check(Integer.valueOf(7).equals(zero.getProperties().get("number")), "another property");
        Instant before = zero.getLockedUntilUtc();
        Thread.sleep(5);
        check(receiver.renewMessageLock(zero).isAfter(before), "the lock was not renewed");
        receiver.complete(zero.getLockToken());
        receiver.abandon(next(receiver).getLockToken());
        IMessage again = next(receiver);
        check("1".equals(text(again)), "not the abandoned one but " + text(again));
        check(again.getDeliveryCount() == 2, "delivered " + again.getDeliveryCount() + " times");
        receiver.complete(again.getLockToken());
        IMessage deferred = next(receiver);
        receiver.defer(deferred.getLockToken());
        receiver.deadLetter(next(receiver).getLockToken(), "bad", "as it is");
        IMessage found = receiver.receiveDeferredMessage(deferred.getSequenceNumber());
        check("2".equals(text(found)), "not the deferred one");
        receiver.complete(found.getLockToken());
        receiver.close();
    }

    static void deadLetters() throws Exception {
        IMessageReceiver receiver = receiver("orders/$DeadLetterQueue");
        IMessage dead = next(receiver);
        Object reason = dead.getProperties().get("DeadLetterReason");
        check("bad".equals(reason), "the reason is " + reason);
        receiver.complete(dead.getLockToken());
        receiver.close();
    }

    static void peekAndDelete() throws Exception {
        send("orders", new Message("a"), new Message("b"));
        IMessageReceiver receiver = ClientFactory.createMessageReceiverFromConnectionStringBuilder(
            at("orders"), ReceiveMode.RECEIVEANDDELETE);
        check(receiver.peekBatch(5).size() == 2, "not 2 messages seen");
        next(receiver);
        next(receiver);
        check(receiver.peek(1) == null, "messages are left");
        receiver.close();
    }

    static void schedule() throws Exception {
        IMessageSender sender = ClientFactory.createMessageSenderFromConnectionStringBuilder(at("orders"));
        long number = sender.scheduleMessage(new Message("later"), Instant.now().plusSeconds(3600));
        sender.cancelScheduledMessage(number);
        sender.close();
        IMessageReceiver receiver = receiver("orders");
        check(receiver.peek(1) == null, "it was not cancelled");
        receiver.close();
    }

    static void sessions() throws Exception {
        Message message = new Message("x");
        message.setSessionId("blue");
        send("sessions", message);
        IMessageSession session = ClientFactory.acceptSessionFromConnectionStringBuilder(at("sessions"), "blue");
        session.setState("state".getBytes());
        check("state".equals(new String(session.getState())), "another state");
        session.setState(null);
        session.renewSessionLock();
        IMessage received = next(session);
        check("blue".equals(received.getSessionId()), "another session");
        session.complete(received.getLockToken());
        session.close();
    }

    /** What a handler has taken is completed behind its back. */
    static void untilEmpty(String queue) throws Exception {
        IMessageReceiver receiver = receiver(queue);
        Instant end = Instant.now().plusSeconds(WAIT_SECONDS);
        while (receiver.peek(1) != null) {
            check(Instant.now().isBefore(end), "it was not completed");
            Thread.sleep(50);
        }
        receiver.close();
    }

    static void handler() throws Exception {
        QueueClient client = new QueueClient(at("orders"), ReceiveMode.PEEKLOCK);
        CompletableFuture<String> came = new CompletableFuture<>();
        ExecutorService threads = Executors.newFixedThreadPool(2);
        IMessageHandler handler = new IMessageHandler() {
            public CompletableFuture<Void> onMessageAsync(IMessage message) {
                came.complete(text(message));
                return CompletableFuture.completedFuture(null);
            }

            public void notifyException(Throwable failure, ExceptionPhase phase) {
                came.completeExceptionally(failure);
            }
        };
        client.registerMessageHandler(handler, new MessageHandlerOptions(1, true, Duration.ofMinutes(1)), threads);
        client.send(new Message("handled"));
        check("handled".equals(came.get(WAIT_SECONDS, TimeUnit.SECONDS)), "another text");
        untilEmpty("orders");
        client.close();
        threads.shutdown();
    }

    static void sessionHandler() throws Exception {
        QueueClient client = new QueueClient(at("sessions"), ReceiveMode.PEEKLOCK);
        CompletableFuture<String> came = new CompletableFuture<>();
        ExecutorService threads = Executors.newFixedThreadPool(2);
        ISessionHandler handler = new ISessionHandler() {
            public CompletableFuture<Void> onMessageAsync(IMessageSession session, IMessage message) {
                came.complete(session.getSessionId() + " " + text(message));
                return CompletableFuture.completedFuture(null);
            }

            public CompletableFuture<Void> OnCloseSessionAsync(IMessageSession session) {
                return CompletableFuture.completedFuture(null);
            }

            public void notifyException(Throwable failure, ExceptionPhase phase) {
                if (phase != ExceptionPhase.ACCEPTSESSION) {
                    came.completeExceptionally(failure);
                }
            }
        };
        client.registerSessionHandler(handler, new SessionHandlerOptions(1, true, Duration.ofMinutes(1)), threads);
        Message message = new Message("handled");
        message.setSessionId("green");
        client.send(message);
        check("green handled".equals(came.get(WAIT_SECONDS, TimeUnit.SECONDS)), "another text");
        client.close();
        threads.shutdown();
    }

    static void topic() throws Exception {
        SubscriptionClient client = new SubscriptionClient(at("events/subscriptions/all"), ReceiveMode.PEEKLOCK);
        client.addRule(new RuleDescription("german", new SqlFilter("country = 'DE'")));
        client.removeRule("$Default");
        Collection<RuleDescription> rules = client.getRules();
        check(rules.size() == 1 && "german".equals(rules.iterator().next().getName()), "other rules");
        Message wanted = new Message("t");
        wanted.setProperties(java.util.Map.of("country", "DE"));
        send("events", new Message("other"), wanted);
        IMessageReceiver receiver = receiver("events/subscriptions/all");
        IMessage received = next(receiver);
        check("t".equals(text(received)), "the rule let another through");
        receiver.complete(received.getLockToken());
        receiver.close();
        client.close();
    }

    static void transactions() throws Exception {
        MessagingFactory factory = MessagingFactory.createFromConnectionStringBuilder(WHERE);
        IMessageSender sender = ClientFactory.createMessageSenderFromEntityPath(factory, "orders");
        IMessageReceiver receiver =
            ClientFactory.createMessageReceiverFromEntityPath(factory, "orders", ReceiveMode.PEEKLOCK);
        TransactionContext first = factory.startTransaction();
        sender.send(new Message("taken back"), first);
        first.rollback();
        TransactionContext second = factory.startTransaction();
        sender.send(new Message("result"), second);
        check(receiver.peek(1) == null, "a message of an open transaction is seen");
        second.commit();
        IMessage received = next(receiver);
        check("result".equals(text(received)), "not the result");
        TransactionContext third = factory.startTransaction();
        receiver.complete(received.getLockToken(), third);
        third.commit();
        check(receiver.peek(1) == null, "messages are left");
        receiver.close();
        sender.close();
        factory.close();
    }

    static void administration() throws Exception {
        ManagementClient client = new ManagementClient(WHERE);
        QueueDescription wanted = new QueueDescription("made");
        wanted.setLockDuration(Duration.ofSeconds(30));
        wanted.setMaxDeliveryCount(4);
        client.createQueue(wanted);
        QueueDescription found = client.getQueue("made");
        check(found.getLockDuration().getSeconds() == 30 && found.getMaxDeliveryCount() == 4, "other settings");
        found.setMaxDeliveryCount(5);
        check(client.updateQueue(found).getMaxDeliveryCount() == 5, "not updated");
        send("made", new Message("x"));
        QueueRuntimeInfo counts = client.getQueueRuntimeInfo("made");
        check(counts.getMessageCountDetails().getActiveMessageCount() == 1, "another count");
        check(client.getQueues().stream().anyMatch(one -> one.getPath().equals("made")), "not listed");
        client.deleteQueue("made");
        check(!client.queueExists("made"), "not deleted");
        client.close();
    }

    static void large() throws Exception {
        byte[] body = new byte[200_000];
        Arrays.fill(body, (byte) 7);
        send("orders", new Message(body));
        IMessageReceiver receiver = receiver("orders");
        IMessage received = next(receiver);
        check(Arrays.equals(body, received.getMessageBody().getBinaryData().get(0)), "other bytes");
        receiver.complete(received.getLockToken());
        receiver.close();
    }

    static void webSocket() throws Exception {
        ClientSettings settings = new ClientSettings(Util.getClientSettingsFromConnectionStringBuilder(WHERE)
            .getTokenProvider(), RetryPolicy.getDefault(), Duration.ofSeconds(WAIT_SECONDS), TransportType.AMQP_WEB_SOCKETS);
        MessagingFactory factory = MessagingFactory.createFromNamespaceEndpointURI(WHERE.getEndpoint(), settings);
        IMessageSender sender = ClientFactory.createMessageSenderFromEntityPath(factory, "orders");
        sender.send(new Message("over WebSocket"));
        IMessageReceiver receiver =
            ClientFactory.createMessageReceiverFromEntityPath(factory, "orders", ReceiveMode.RECEIVEANDDELETE);
        check("over WebSocket".equals(text(next(receiver))), "another text");
        receiver.close();
        sender.close();
        factory.close();
    }

    static void missing() throws Exception {
        try {
            send("nothing", new Message("x"));
        } catch (MessagingEntityNotFoundException expected) {
            return;
        }
        throw new IllegalStateException("a queue that is not there took a message");
    }

    public static void main(String[] arguments) {
        run("send, receive and settle", OldJudge::settle);
        run("dead letters", OldJudge::deadLetters);
        run("peek, receive and delete", OldJudge::peekAndDelete);
        run("schedule and cancel", OldJudge::schedule);
        run("sessions", OldJudge::sessions);
        run("message handler", OldJudge::handler);
        run("session handler", OldJudge::sessionHandler);
        run("topic and rules", OldJudge::topic);
        run("transactions", OldJudge::transactions);
        run("administration", OldJudge::administration);
        run("many frames", OldJudge::large);
        run("WebSocket", OldJudge::webSocket);
        run("refused links", OldJudge::missing);
        System.exit(0);
    }
}
