import com.azure.core.amqp.models.AmqpAnnotatedMessage;
import com.azure.core.amqp.models.AmqpMessageBody;
import com.azure.core.amqp.models.AmqpMessageBodyType;
import com.azure.json.JsonProviders;
import com.azure.json.JsonReader;
import com.azure.messaging.servicebus.*;
import com.azure.messaging.servicebus.models.*;
import java.io.StringReader;
import java.math.BigInteger;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.*;
import org.apache.qpid.proton.amqp.*;

/** The typed corpus with azure-messaging-servicebus: `Corpus send QUEUE FILE` and `Corpus read COUNT QUEUE...`. */
public class Corpus {
    static final Duration PATIENCE = Duration.ofSeconds(20);

    static Object built(List<?> value) {
        String kind = (String) value.get(0);
        if (kind.equals("list")) {
            List<Object> made = new ArrayList<>();
            for (Object item : (List<?>) value.get(1)) {
                made.add(built((List<?>) item));
            }
            return made;
        }
        if (kind.equals("map")) {
            Map<Object, Object> made = new LinkedHashMap<>();
            for (Object pair : (List<?>) value.get(1)) {
                made.put(((List<?>) pair).get(0), built((List<?>) ((List<?>) pair).get(1)));
            }
            return made;
        }
        String text = (String) value.get(1);
        return switch (kind) {
            case "null" -> null;
            case "boolean" -> Boolean.valueOf(text);
            case "ubyte" -> UnsignedByte.valueOf(text);
            case "ushort" -> UnsignedShort.valueOf(text);
            case "uint" -> UnsignedInteger.valueOf(text);
            case "ulong" -> UnsignedLong.valueOf(new BigInteger(text));
            case "byte" -> Byte.valueOf(text);
            case "short" -> Short.valueOf(text);
            case "int" -> Integer.valueOf(text);
            case "long" -> Long.valueOf(text);
            case "float" -> Float.intBitsToFloat(Integer.parseUnsignedInt(text, 16));
            case "double" -> Double.longBitsToDouble(Long.parseUnsignedLong(text, 16));
            case "timestamp" -> new Date(Long.parseLong(text));
            case "uuid" -> UUID.fromString(text);
            case "binary" -> new Binary(HexFormat.of().parseHex(text));
            case "symbol" -> Symbol.valueOf(text);
            case "string" -> text;
            case "char" -> character(Integer.parseInt(text));
            default -> throw new UnsupportedOperationException(kind);
        };
    }

    static Character character(int point) {
        if (point > Character.MAX_VALUE) {
            throw new UnsupportedOperationException("char beyond 16 bits");
        }
        return (char) point;
    }

    static ServiceBusMessage message(Map<?, ?> one) {
        AmqpMessageBody body = one.containsKey("data")
            ? AmqpMessageBody.fromData(HexFormat.of().parseHex((String) one.get("data")))
            : AmqpMessageBody.fromValue(built((List<?>) one.get("value")));
        ServiceBusMessage made = new ServiceBusMessage(body).setMessageId((String) one.get("id"));
        ((Map<?, ?>) one.get("properties")).forEach(
            (name, value) -> made.getApplicationProperties().put((String) name, built((List<?>) value)));
        ((Map<?, ?>) one.get("fields")).forEach((name, value) -> {
            String text = (String) value;
            switch ((String) name) {
                case "to" -> made.setTo(text);
                case "subject" -> made.setSubject(text);
                case "replyTo" -> made.setReplyTo(text);
                case "correlationId" -> made.setCorrelationId(text);
                default -> made.setContentType(text);
            }
        });
        return made;
    }

    static String quoted(Object value) {
        StringBuilder made = new StringBuilder("\"");
        for (char sign : String.valueOf(value).toCharArray()) {
            made.append(sign < ' ' || sign > '~' || sign == '"' || sign == '\\' ? String.format("\\u%04x", (int) sign) : sign);
        }
        return made.append('"').toString();
    }

    static String view(Object value) {
        if (value == null) {
            return "null";
        }
        if (value instanceof Map<?, ?> map) {
            TreeMap<String, String> made = new TreeMap<>();
            map.forEach((key, item) -> made.put(String.valueOf(key), view(item)));
            StringJoiner text = new StringJoiner(",", "{", "}");
            made.forEach((key, item) -> text.add(quoted(key) + ":" + item));
            return text.toString();
        }
        if (value instanceof Iterable<?> items) {
            StringJoiner text = new StringJoiner(",", "[", "]");
            items.forEach(item -> text.add(view(item)));
            return text.toString();
        }
        Object shown = value;
        if (value instanceof byte[] bytes) {
            shown = HexFormat.of().formatHex(bytes);
        } else if (value instanceof Binary binary) {
            shown = HexFormat.of().formatHex(Arrays.copyOfRange(
                binary.getArray(), binary.getArrayOffset(), binary.getArrayOffset() + binary.getLength()));
        } else if (value instanceof Float number) {
            shown = Integer.toHexString(Float.floatToRawIntBits(number));
        } else if (value instanceof Double number) {
            shown = Long.toHexString(Double.doubleToRawLongBits(number));
        } else if (value instanceof Date date) {
            shown = date.getTime();
        }
        return "[" + quoted(value.getClass().getSimpleName()) + "," + quoted(shown) + "]";
    }

    static String seen(ServiceBusReceivedMessage one) {
        AmqpAnnotatedMessage raw = one.getRawAmqpMessage();
        AmqpMessageBody body = raw.getBody();
        Object content = body.getBodyType() == AmqpMessageBodyType.DATA ? body.getFirstData() : body.getValue();
        List<Object> fields = Arrays.asList(
            one.getTo(), one.getSubject(), one.getReplyTo(), one.getCorrelationId(), one.getContentType());
        return "[" + view(content) + "," + view(one.getApplicationProperties()) + "," + view(fields) + "]";
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("send")) {
            List<?> all;
            try (JsonReader reader =
                    JsonProviders.createReader(new StringReader(Files.readString(Path.of(arguments[2]))))) {
                reader.nextToken();
                all = reader.readArray(JsonReader::readUntyped);
            }
            try (ServiceBusSenderClient sender = Judge.BUILDER.sender().queueName(arguments[1]).buildClient()) {
                for (Object one : all) {
                    try {
                        sender.sendMessage(message((Map<?, ?>) one));
                    } catch (UnsupportedOperationException kind) {
                        Object id = ((Map<?, ?>) one).get("id");
                        System.out.println("{\"id\": \"" + id + "\", \"cannot\": " + quoted(kind.getMessage()) + "}");
                    } catch (ServiceBusException failure) {
                        // It counts the characters of a text where its bytes are more, and has too little room then.
                        if (!String.valueOf(failure.getMessage()).contains("exceeded maximum message size")) {
                            throw failure;
                        }
                        Object id = ((Map<?, ?>) one).get("id");
                        System.out.println("{\"id\": \"" + id + "\", \"cannot\": \"long text beyond ASCII in a value\"}");
                    }
                }
            }
        } else {
            for (String queue : Arrays.asList(arguments).subList(2, arguments.length)) {
                try (ServiceBusReceiverClient receiver = Judge.BUILDER.receiver().queueName(queue)
                        .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient()) {
                    for (int left = Integer.parseInt(arguments[1]); left > 0; ) {
                        List<ServiceBusReceivedMessage> taken = receiver.receiveMessages(left, PATIENCE).stream().toList();
                        if (taken.isEmpty()) {
                            break;
                        }
                        left -= taken.size();
                        taken.forEach(one -> System.out.println("{\"queue\": " + quoted(queue) + ", \"id\": "
                            + quoted(one.getMessageId()) + ", \"view\": " + seen(one) + "}"));
                    }
                }
            }
        }
        System.exit(0);
    }
}
