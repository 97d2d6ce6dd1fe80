import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.ConnectionFactory;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.Arrays;
import java.util.Enumeration;

/**
 * Scenarios of JMS against a namespace (ENDPOINT, CONNECTION): a JSON line each. The argument is the class of the
 * connection factory: that of qpid-jms, the JMS of AMQP 1.0, or of one of Microsoft's two libraries that wrap it.
 */
public class JmsJudge {
    interface Scenario {
        void run(Connection connection) throws Exception;
    }

    static final long WAIT_MILLISECONDS = 15_000;
    static final long NOTHING_MILLISECONDS = 300;
    static String factory;

    static void check(boolean held, String what) {
        if (!held) {
            throw new IllegalStateException(what);
        }
    }

    /** One part of the connection string. */
    static String field(String name) {
        return Arrays.stream(System.getenv("CONNECTION").split(";"))
            .filter(part -> part.startsWith(name + "=")).findFirst().get().substring(name.length() + 1);
    }

    /** Microsoft's factories take a connection string, and always use TLS on its port 5671. */
    static Connection connected() throws Exception {
        Class<?> kind = Class.forName(factory);
        Connection connection;
        if (factory.startsWith("org.apache.qpid.")) {
            String address = System.getenv("ENDPOINT").replace("sb://", "amqp://")
                + "?amqp.saslMechanisms=PLAIN&amqp.idleTimeout=120000&jms.prefetchPolicy.all=0";
            ConnectionFactory plain = (ConnectionFactory) kind.getConstructor(String.class).newInstance(address);
            connection = plain.createConnection(field("SharedAccessKeyName"), field("SharedAccessKey"));
        } else {
            Class<?> settings = Class.forName(factory + "Settings");
            ConnectionFactory azure = (ConnectionFactory) kind.getConstructor(String.class, settings)
                .newInstance(System.getenv("CONNECTION"), settings.getConstructor().newInstance());
            connection = azure.createConnection();
        }
        connection.start();
        return connection;
    }

    static void run(String name, Scenario scenario) {
        String error = "null";
        try (Connection connection = connected()) {
            scenario.run(connection);
        } catch (Exception failure) {
            error = "\"" + String.valueOf(failure).replaceAll("[\"\\\\\\s]+", " ") + "\"";
        }
        System.out.println("{\"scenario\": \"" + name + "\", \"error\": " + error + "}");
    }

    static String text(Message message) throws JMSException {
        check(message != null, "no message came");
        return ((TextMessage) message).getText();
    }

    static void acknowledge(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Message sent = session.createTextMessage("work");
        sent.setIntProperty("number", 7);
        sent.setStringProperty("country", "DE");
        sent.setJMSCorrelationID("together");
        session.createProducer(session.createQueue("orders")).send(sent);
        MessageConsumer consumer = session.createConsumer(session.createQueue("orders"));
        Message first = consumer.receive(WAIT_MILLISECONDS);
        check("work".equals(text(first)), "another text");
        check(first.getIntProperty("number") == 7 && "DE".equals(first.getStringProperty("country")), "other properties");
        check(sent.getJMSMessageID().equals(first.getJMSMessageID()), "another message id");
        check("together".equals(first.getJMSCorrelationID()), "another correlation id");
        session.recover();
        Message again = consumer.receive(WAIT_MILLISECONDS);
        check("work".equals(text(again)) && again.getJMSRedelivered(), "not delivered again after recover");
        again.acknowledge();
        check(consumer.receive(NOTHING_MILLISECONDS) == null, "delivered again after the acknowledgement");
    }

    /** A rollback leaves the lock of a received message, as at the service: it comes again when that has ended. */
    static void transacted(Connection connection) throws JMSException {
        Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
        Session looking = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        session.createProducer(session.createQueue("short")).send(session.createTextMessage("taken back"));
        session.rollback();
        session.createProducer(session.createQueue("short")).send(session.createTextMessage("kept"));
        MessageConsumer other = looking.createConsumer(looking.createQueue("short"));
        check(other.receive(NOTHING_MILLISECONDS) == null, "a message of an open transaction is seen");
        other.close();
        session.commit();
        MessageConsumer consumer = session.createConsumer(session.createQueue("short"));
        check("kept".equals(text(consumer.receive(WAIT_MILLISECONDS))), "not the message that was kept");
        session.rollback();
        check("kept".equals(text(consumer.receive(WAIT_MILLISECONDS))), "not back after the rollback");
        session.commit();
        check(consumer.receive(NOTHING_MILLISECONDS) == null, "delivered again after the commit");
    }

    static void bytes(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        byte[] body = new byte[150_000];
        Arrays.fill(body, (byte) 7);
        BytesMessage sent = session.createBytesMessage();
        sent.writeBytes(body);
        session.createProducer(session.createQueue("orders")).send(sent);
        Message received = session.createConsumer(session.createQueue("orders")).receive(WAIT_MILLISECONDS);
        check(received != null, "no message came");
        check(Arrays.equals(received.getBody(byte[].class), body), "other bytes");
    }

    static void topic(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        session.createProducer(session.createTopic("events")).send(session.createTextMessage("t"));
        MessageConsumer consumer = session.createConsumer(session.createQueue("events/Subscriptions/all"));
        check("t".equals(text(consumer.receive(WAIT_MILLISECONDS))), "another text");
    }

    static void browse(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        session.createProducer(session.createQueue("orders")).send(session.createTextMessage("seen"));
        QueueBrowser browser = session.createBrowser(session.createQueue("orders"));
        Enumeration<?> found = browser.getEnumeration();
        check(found.hasMoreElements() && "seen".equals(text((Message) found.nextElement())), "nothing is shown");
        browser.close();
        MessageConsumer consumer = session.createConsumer(session.createQueue("orders"));
        check("seen".equals(text(consumer.receive(WAIT_MILLISECONDS))), "the browser took it");
    }

    static void missing(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        try {
            session.createConsumer(session.createQueue("nothing"));
        } catch (JMSException expected) {
            check(String.valueOf(expected.getMessage()).contains("could not be found"), "it says " + expected.getMessage());
            return;
        }
        throw new IllegalStateException("a queue that is not there was opened");
    }

    public static void main(String[] arguments) {
        factory = arguments[0];
        run("acknowledge and recover", JmsJudge::acknowledge);
        run("transactions", JmsJudge::transacted);
        run("many frames", JmsJudge::bytes);
        run("topic", JmsJudge::topic);
        run("browser", JmsJudge::browse);
        run("refused links", JmsJudge::missing);
        System.exit(0);
    }
}
