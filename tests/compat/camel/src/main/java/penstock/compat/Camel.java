// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import static penstock.compat.Kit.eventually;
import static penstock.compat.Kit.want;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.camel.Exchange;
import org.apache.camel.Processor;
import org.apache.camel.ProducerTemplate;
import org.apache.camel.builder.LambdaRouteBuilder;
import org.apache.camel.component.pulsar.PulsarMessageReceipt;
import org.apache.camel.component.pulsar.utils.message.PulsarMessageHeaders;
import org.apache.camel.main.Main;

/**
 * Applications of Apache Camel against the brokers at PULSAR_URLS. Each has a route `direct:out` that publishes to a topic
 * and routes that receive.
 */
public final class Camel {
    private static final int CASE_TIMEOUT_S = 120;
    private static final int WAIT_S = 60;
    /** Large enough for three chunks. */
    private static final int LARGE_CHARS = 12_000_000;
    /** The shortest that the client allows. Without an acknowledgement a message is delivered again after it. */
    private static final String ACK_TIMEOUT = "&ackTimeoutMillis=1000";
    private static final String SOON = "&negativeAckRedeliveryDelayMicros=100000";

    private final Kit kit;
    private int turn;

    /** What a case has at hand. */
    private record Running(ProducerTemplate template, String topic, Seen seen) {
        void sends(String... texts) {
            for (String text : texts) {
                template().sendBody("direct:out", text);
            }
        }

        void sendsKeys(Iterable<String> texts, int keys) {
            int number = 0;
            for (String text : texts) {
                template().sendBodyAndHeader("direct:out", text, PulsarMessageHeaders.KEY_OUT,
                        "k" + number++ % keys);
            }
        }
    }

    /** An application that runs until it is closed. */
    private record Started(Main main) implements AutoCloseable {
        boolean runs() {
            return main.isStarted();
        }

        @Override
        public void close() {
            main.stop();
        }
    }

    private interface Body {
        void run(Running at) throws Exception;
    }

    private Camel(Kit kit) {
        this.kit = kit;
    }

    public static void main(String[] arguments) throws Exception {
        Kit kit = new Kit("camel", CASE_TIMEOUT_S, arguments);
        new Camel(kit).all();
        kit.exit();
    }

    private void all() throws Exception {
        messages();
        subscriptions();
        failures();
    }

    private void messages() throws Exception {
        test("exclusive", "a route receives in order what another one sends", "", "", at -> {
            at.sends("a", "b", "c");
            at.seen.are(List.of("a", "b", "c"), WAIT_S);
        });
        Seen headers = new Seen();
        test("keys-and-properties", "key, properties and event time are headers", "", "", exchange -> {
            var in = exchange.getIn();
            headers.add(in.getHeader(PulsarMessageHeaders.KEY) + " " + in.getHeader(PulsarMessageHeaders.PROPERTIES)
                    + " " + in.getHeader(PulsarMessageHeaders.EVENT_TIME));
        }, at -> {
            at.template().sendBodyAndHeaders("direct:out", "x", Map.of(
                    PulsarMessageHeaders.KEY_OUT, "k",
                    PulsarMessageHeaders.PROPERTIES_OUT, Map.of("color", "red"),
                    PulsarMessageHeaders.EVENT_TIME_OUT, 77L));
            headers.are(List.of("k {color=red} 77"), WAIT_S);
        });
        test("compression", "a compressed message is received", "", "compressionType=ZSTD", at -> {
            at.sends("a".repeat(1_000));
            at.seen.are(List.of("a".repeat(1_000)), WAIT_S);
        });
        Seen lengths = new Seen();
        test("chunking", "a message larger than the limit is received whole", "",
                "chunkingEnabled=true&batchingEnabled=false",
                exchange -> lengths.add(String.valueOf(text(exchange).length())), at -> {
            at.sends("x".repeat(LARGE_CHARS));
            lengths.are(List.of(String.valueOf(LARGE_CHARS)), WAIT_S);
        });
        test("reconnect", "routes go on after the broker was killed", "", "", at -> {
            at.sends("before");
            at.seen.are(List.of("before"), WAIT_S);
            Kit.restartBroker();
            at.sends("after");
            at.seen.areInAnyOrder(Set.of("before", "after"), WAIT_S);
        });
    }

    private void subscriptions() throws Exception {
        test("failover", "of three failover consumers one receives in order",
                "&subscriptionType=FAILOVER&numberOfConsumers=3", "", at -> {
            at.sends("a", "b", "c", "d");
            at.seen.are(List.of("a", "b", "c", "d"), WAIT_S);
        });
        test("shared", "three shared consumers receive each message once",
                "&subscriptionType=SHARED&numberOfConsumers=3", "batchingEnabled=false", at -> {
            List<String> sent = IntStream.range(0, 90).mapToObj(i -> "m" + i).toList();
            at.sends(sent.toArray(new String[0]));
            at.seen.areInAnyOrder(sent, WAIT_S);
            want(at.seen.texts().size() == sent.size(), "received more often than once:", at.seen.texts());
        });
        test("key-shared", "three consumers receive the messages of a key in order",
                "&subscriptionType=KEY_SHARED&numberOfConsumers=3", "batchingEnabled=false", at -> {
            List<String> sent = IntStream.range(0, 120).mapToObj(i -> i % 12 + ":" + i).toList();
            at.sendsKeys(sent, 12);
            eventually(sent.size(), WAIT_S, () -> at.seen.texts().size());
            want(byKey(at.seen.texts()).equals(byKey(sent)), "not in order:", at.seen.texts());
        });
        test("receiving", "threads of a route receive without a listener",
                "&subscriptionType=SHARED&messageListener=false&numberOfConsumerThreads=3", "", at -> {
            at.sends("a", "b", "c");
            at.seen.areInAnyOrder(Set.of("a", "b", "c"), WAIT_S);
        });
        test("initial-position", "a route that starts later receives from the beginning", null, "", at -> {
            at.sends("early");
            try (var later = start(from(at.topic, "&subscriptionInitialPosition=EARLIEST", seeing(at.seen)))) {
                want(later.runs(), "the second application did not start");
                at.seen.are(List.of("early"), WAIT_S);
            }
        });
        test("pattern", "a route of a pattern receives from both topics", null, "", at -> {
            String pattern = "&topicsPattern=true&subscriptionInitialPosition=EARLIEST";
            for (String name : List.of("one", "two")) {
                at.template().sendBody(uri(at.topic + "-" + name, ""), name);
            }
            try (var later = start(from(at.topic + "-.*", pattern, seeing(at.seen)))) {
                want(later.runs(), "the second application did not start");
                at.seen.areInAnyOrder(Set.of("one", "two"), WAIT_S);
            }
        });
    }

    private void failures() throws Exception {
        Seen manual = new Seen();
        test("negative-ack", "receipts acknowledge one message and give back another",
                "&subscriptionType=SHARED&allowManualAcknowledgement=true" + SOON, "batchingEnabled=false", exchange -> {
            var receipt = exchange.getIn().getHeader(PulsarMessageHeaders.MESSAGE_RECEIPT, PulsarMessageReceipt.class);
            manual.add(text(exchange));
            if (text(exchange).equals("done")) {
                receipt.acknowledge();
            } else {
                receipt.negativeAcknowledge();
            }
        }, at -> {
            at.sends("again", "done");
            eventually(true, WAIT_S, () -> manual.texts().stream().filter("again"::equals).count() > 2);
            want(manual.texts().stream().filter("done"::equals).count() == 1, manual.texts());
        });
        Seen tries = new Seen();
        test("ack-timeout", "a message whose route failed is delivered again after the timeout",
                "&subscriptionType=SHARED" + ACK_TIMEOUT, "", exchange -> {
            tries.add(text(exchange));
            if (tries.texts().size() == 1) {
                throw new IllegalStateException("the first time");
            }
        }, at -> {
            at.sends("x");
            tries.are(List.of("x", "x"), WAIT_S);
        });
        Seen dead = new Seen();
        test("dead-letter", "what a route always refuses goes to the dead letter topic",
                "&subscriptionType=SHARED&maxRedeliverCount=1" + ACK_TIMEOUT, "batchingEnabled=false", exchange -> {
            if (text(exchange).equals("bad")) {
                throw new IllegalArgumentException("bad");
            }
            dead.add(text(exchange));
        }, at -> {
            String letters = at.topic + "-s-DLQ";
            try (var second = start(from(letters, "&subscriptionInitialPosition=EARLIEST",
                    exchange -> dead.add("dead: " + text(exchange))))) {
                want(second.runs(), "the second application did not start");
                at.sends("good", "bad");
                dead.areInAnyOrder(Set.of("good", "dead: bad"), WAIT_S);
            }
        });
    }

    private static String text(Exchange exchange) {
        return exchange.getIn().getBody(String.class);
    }

    private static Processor seeing(Seen seen) {
        return exchange -> seen.add(text(exchange));
    }

    /** The numbers of each key, in their order. */
    private static Map<String, List<String>> byKey(List<String> texts) {
        return texts.stream().collect(Collectors.groupingBy(text -> text.substring(0, text.indexOf(':'))));
    }

    private static String uri(String topic, String options) {
        return "pulsar:" + topic + (options.isEmpty() ? "" : "?" + options);
    }

    private static LambdaRouteBuilder from(String topic, String options, Processor processor) {
        return routes -> routes.from(uri(topic, "subscriptionName=s" + options)).process(processor);
    }

    private void test(String feature, String name, String in, String out, Body body) throws Exception {
        Seen seen = new Seen();
        run(feature, name, in, out, seeing(seen), seen, body);
    }

    private void test(String feature, String name, String in, String out, Processor processor, Body body)
            throws Exception {
        run(feature, name, in, out, processor, new Seen(), body);
    }

    /** One application with a route that receives, unless its options are null, and one that sends. */
    private void run(String feature, String name, String in, String out, Processor processor, Seen seen, Body body)
            throws Exception {
        String topic = "persistent://public/default/camel-" + ProcessHandle.current().pid() + "-" + turn;
        List<LambdaRouteBuilder> routes = new ArrayList<>();
        routes.add(builder -> builder.from("direct:out").to(uri(topic, out)));
        if (in != null) {
            routes.add(from(topic, in, processor));
        }
        kit.run(feature, name, () -> {
            try (Started started = start(routes.toArray(new LambdaRouteBuilder[0]))) {
                body.run(new Running(started.main.getCamelTemplate(), topic, seen));
            }
        });
        turn++;
    }

    private Started start(LambdaRouteBuilder... routes) {
        Main main = new Main();
        Map<String, Object> properties = new HashMap<>();
        properties.put("camel.component.pulsar.service-url", Kit.turnOf("PULSAR_URLS", turn));
        properties.put("camel.main.shutdown-timeout", 5);
        properties.forEach((key, value) -> main.addInitialProperty(key, String.valueOf(value)));
        for (LambdaRouteBuilder one : routes) {
            main.configure().addLambdaRouteBuilder(one);
        }
        main.start();
        return new Started(main);
    }
}
