// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import static penstock.compat.Kit.eventually;
import static penstock.compat.Kit.want;

import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.reactive.client.adapter.AdaptedReactivePulsarClientFactory;
import org.apache.pulsar.reactive.client.api.EndOfStreamAction;
import org.apache.pulsar.reactive.client.api.MessageResult;
import org.apache.pulsar.reactive.client.api.MessageSpec;
import org.apache.pulsar.reactive.client.api.ReactiveMessageConsumerBuilder;
import org.apache.pulsar.reactive.client.api.ReactiveMessageSender;
import org.apache.pulsar.reactive.client.api.ReactiveMessageSenderCache;
import org.apache.pulsar.reactive.client.api.ReactivePulsarClient;
import org.apache.pulsar.reactive.client.api.StartAtSpec;
import org.reactivestreams.Publisher;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/** Streams of Project Reactor, through Pulsar's reactive client, against the brokers at PULSAR_URLS. */
public final class Reactive {
    private static final int CASE_TIMEOUT_S = 120;
    private static final int WAIT_S = 60;
    private static final Duration WAIT = Duration.ofSeconds(WAIT_S);
    private static final int MANY = 2_000;

    private final Kit kit;
    private int turn;

    /** What a case has at hand. */
    private record Running(ReactivePulsarClient client, ReactiveMessageSenderCache cache, String topic, Seen seen) {
        ReactiveMessageSender<String> sender() {
            return client.messageSender(Schema.STRING).cache(cache).topic(topic).maxInflight(100).build();
        }

        void sends(String... texts) {
            sender().sendMany(Flux.fromArray(texts).map(MessageSpec::of)).blockLast(WAIT);
        }

        ReactiveMessageConsumerBuilder<String> consumer() {
            return client.messageConsumer(Schema.STRING).topic(topic).subscriptionName("s")
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
        }

        List<String> reads() {
            return client.messageReader(Schema.STRING).topic(topic).startAtSpec(StartAtSpec.ofEarliest())
                    .endOfStreamAction(EndOfStreamAction.COMPLETE).build().readMany().map(Message::getValue)
                    .collectList().block(WAIT);
        }
    }

    private interface Body {
        void run(Running at) throws Exception;
    }

    private Reactive(Kit kit) {
        this.kit = kit;
    }

    public static void main(String[] arguments) throws Exception {
        Kit kit = new Kit("reactor", CASE_TIMEOUT_S, arguments);
        new Reactive(kit).all();
        kit.exit();
    }

    private void all() throws Exception {
        sending();
        consuming();
        failing();
    }

    private void sending() throws Exception {
        test("produce-sync", "one message is sent and answered", at -> {
            want(at.sender().sendOne(MessageSpec.of("x")).block(WAIT) != null, "no message id");
            want(at.reads().equals(List.of("x")), at.reads());
        });
        test("produce-async", "a stream waits for receipts, and is read back in order", at -> {
            String[] sent = numbers(MANY);
            at.sends(sent);
            want(at.reads().equals(List.of(sent)), "not as sent");
        });
        test("keys-and-properties", "key, properties and event time are there", at -> {
            at.sender().sendOne(MessageSpec.builder("x").key("k").property("color", "red").eventTime(77L).build())
                    .block(WAIT);
            Message<String> got = at.client.messageReader(Schema.STRING).topic(at.topic)
                    .startAtSpec(StartAtSpec.ofEarliest()).build().readOne().block(WAIT);
            want(got != null && got.getKey().equals("k") && got.getProperty("color").equals("red")
                    && got.getEventTime() == 77, got);
        });
        test("reader", "a reader goes on behind a message id", at -> {
            at.sends("a", "b", "c");
            var reader = at.client.messageReader(Schema.STRING).topic(at.topic);
            Message<String> first = reader.clone().startAtSpec(StartAtSpec.ofEarliest()).build().readOne().block(WAIT);
            want(first != null && first.getValue().equals("a"), first);
            List<String> rest = reader.clone().startAtSpec(StartAtSpec.ofMessageId(first.getMessageId()))
                    .build().readMany().map(Message::getValue).take(2).collectList().block(WAIT);
            want(List.of("b", "c").equals(rest), rest);
        });
    }

    private void consuming() throws Exception {
        test("exclusive", "a pipeline handles messages in order", at -> {
            String[] sent = numbers(100);
            at.sends(sent);
            try (var pipeline = at.consumer().build().messagePipeline().messageHandler(seeing(at.seen)).build().start()) {
                at.seen.are(List.of(sent), WAIT_S);
                want(pipeline.isRunning(), "the pipeline has ended");
            }
        });
        test("key-shared", "concurrent handlers keep the order of a key", at -> {
            at.sender().sendMany(Flux.range(0, 400).map(number -> MessageSpec.builder(number % 8 + ":" + number)
                    .key("k" + number % 8).build())).blockLast(WAIT);
            try (var pipeline = at.consumer().subscriptionType(SubscriptionType.Key_Shared).build().messagePipeline()
                    .messageHandler(seeing(at.seen)).concurrency(8).useKeyOrderedProcessing().build().start()) {
                eventually(400, WAIT_S, () -> at.seen.texts().size());
                for (int key = 0; key < 8; key++) {
                    String prefix = key + ":";
                    List<Integer> found = at.seen.texts().stream().filter(text -> text.startsWith(prefix))
                            .map(text -> Integer.valueOf(text.substring(2))).toList();
                    want(found.equals(found.stream().sorted().toList()) && found.size() == 50, key, found);
                }
                want(pipeline.isRunning(), "the pipeline has ended");
            }
        });
        test("ack-individual", "what was acknowledged is not delivered again", at -> {
            at.sends("a", "b", "c");
            for (String wanted : List.of("a", "b", "c")) {
                String next = at.consumer().acknowledgeAsynchronously(false).build().consumeOne(message -> Mono.just(
                        MessageResult.acknowledge(message.getMessageId(), message.getValue()))).block(WAIT);
                want(wanted.equals(next), "want", wanted, "got", next);
            }
        });
        test("reconnect", "a pipeline and a sender go on after the broker was killed", at -> {
            try (var pipeline = at.consumer().build().messagePipeline().messageHandler(seeing(at.seen)).build().start()) {
                at.sends("before");
                at.seen.are(List.of("before"), WAIT_S);
                Kit.restartBroker();
                at.sends("after");
                at.seen.areInAnyOrder(Set.of("before", "after"), WAIT_S);
                want(pipeline.isRunning(), "the pipeline has ended");
            }
        });
    }

    private void failing() throws Exception {
        test("negative-ack", "a message whose handler failed is handled again", at -> {
            AtomicBoolean failed = new AtomicBoolean();
            at.sends("a", "b");
            try (var pipeline = at.consumer().subscriptionType(SubscriptionType.Shared)
                    .negativeAckRedeliveryDelay(Duration.ofMillis(100)).build().messagePipeline()
                    .messageHandler(message -> Mono.fromRunnable(() -> {
                        if (message.getValue().equals("a") && failed.compareAndSet(false, true)) {
                            throw new IllegalStateException("the first time");
                        }
                        at.seen.add(message.getValue());
                    })).build().start()) {
                at.seen.areInAnyOrder(Set.of("a", "b"), WAIT_S);
                want(failed.get() && pipeline.isRunning(), "the pipeline has ended");
            }
        });
        test("dead-letter", "what a handler always refuses goes to the dead letter topic", at -> {
            String letters = at.topic + "-dead";
            at.sends("good", "bad");
            try (var dead = at.client.messageConsumer(Schema.STRING).topic(letters).subscriptionName("s").build()
                    .messagePipeline().messageHandler(message -> Mono.fromRunnable(
                            () -> at.seen.add("dead: " + message.getValue()))).build().start();
                    var pipeline = at.consumer().subscriptionType(SubscriptionType.Shared)
                    .negativeAckRedeliveryDelay(Duration.ofMillis(100))
                    .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic(letters)
                            .initialSubscriptionName("s").build()).build().messagePipeline()
                    .messageHandler(message -> Mono.fromRunnable(() -> {
                        if (message.getValue().equals("bad")) {
                            throw new IllegalArgumentException("bad");
                        }
                        at.seen.add(message.getValue());
                    })).build().start()) {
                at.seen.areInAnyOrder(Set.of("good", "dead: bad"), WAIT_S);
                want(dead.isRunning() && pipeline.isRunning(), "a pipeline has ended");
            }
        });
    }

    private static String[] numbers(int count) {
        return IntStream.range(0, count).mapToObj(String::valueOf).toArray(String[]::new);
    }

    private static Function<Message<String>, Publisher<Void>> seeing(Seen seen) {
        return message -> Mono.fromRunnable(() -> seen.add(message.getValue()));
    }

    private void test(String feature, String name, Body body) throws Exception {
        String topic = "persistent://public/default/reactor-" + ProcessHandle.current().pid() + "-" + turn;
        kit.run(feature, name, () -> {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(Kit.turnOf("PULSAR_URLS", turn))
                    .operationTimeout(WAIT_S, TimeUnit.SECONDS).build();
                    ReactiveMessageSenderCache cache = AdaptedReactivePulsarClientFactory.createCache()) {
                body.run(new Running(AdaptedReactivePulsarClientFactory.create(client), cache, topic, new Seen()));
            }
        });
        turn++;
    }
}
