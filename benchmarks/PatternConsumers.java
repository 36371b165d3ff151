// SPDX-License-Identifier: Apache-2.0

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageListener;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Consumers of topics with long names, made with the official client, for `benchmarks/listings.py`: it starts this with
 * URL, clients, consumers, topics, the topics' prefix, and a pattern for them or "names"; then every line that it writes
 * here is a step, and every line that comes back says that the step is done. A pattern with two places for a number is
 * each consumer's own: it takes one of the first topics and one of those that come later. Consumers "by names" are told the same
 * topics in a list, so that the difference is what finding them by a pattern takes.
 */
public final class PatternConsumers {
    private static final AtomicInteger RECEIVED = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        String url = arguments[0];
        int clients = Integer.parseInt(arguments[1]);
        int consumers = Integer.parseInt(arguments[2]);
        int topics = Integer.parseInt(arguments[3]);
        String prefix = arguments[4];
        boolean byPattern = !arguments[5].equals("names");
        var steps = new BufferedReader(new InputStreamReader(System.in));
        List<PulsarClient> connected = new ArrayList<>();
        List<Producer<byte[]>> producers = new ArrayList<>();

        steps.readLine(); // connect, and make the first topics
        for (int i = 0; i < clients; i++) {
            PulsarClient client = PulsarClient.builder().serviceUrl(url).ioThreads(1).listenerThreads(1)
                    .operationTimeout(60, TimeUnit.SECONDS).build();
            client.getPartitionsForTopic(topic(prefix, 0)).get();
            connected.add(client);
        }
        produce(connected.get(0), producers, prefix, 0, topics);
        System.out.println("connected");

        steps.readLine(); // subscribe
        List<String> names = new ArrayList<>();
        for (int i = 0; i < topics; i++) {
            names.add(topic(prefix, i));
        }
        List<CompletableFuture<Consumer<byte[]>>> subscribing = new ArrayList<>();
        MessageListener<byte[]> listener = (consumer, message) -> {
            consumer.acknowledgeAsync(message);
            RECEIVED.incrementAndGet();
        };
        for (int i = 0; i < consumers; i++) {
            var builder = connected.get(i % clients).newConsumer().subscriptionName("s").receiverQueueSize(1)
                    .subscriptionType(SubscriptionType.Shared).messageListener(listener);
            builder = byPattern
                    ? builder.topicsPattern(Pattern.compile(arguments[5].formatted(i % topics, topics + i % topics)))
                    : builder.topics(names);
            subscribing.add(builder.subscribeAsync());
        }
        for (var subscribed : subscribing) {
            subscribed.get(120, TimeUnit.SECONDS);
        }
        System.out.println("subscribed");

        steps.readLine(); // a message to each topic
        send(producers, 0, topics);
        System.out.println("received " + RECEIVED.get());

        steps.readLine(); // as many topics more, with a message each
        if (byPattern) {
            produce(connected.get(0), producers, prefix, topics, 2 * topics);
            send(producers, topics, 2 * topics);
        }
        System.out.println("received " + RECEIVED.get());

        steps.readLine(); // the end
        System.exit(0);
    }

    private static String topic(String prefix, int number) {
        return "persistent://" + prefix + "%04d".formatted(number);
    }

    private static void produce(PulsarClient client, List<Producer<byte[]>> producers, String prefix, int from, int to)
            throws Exception {
        for (int i = from; i < to; i++) {
            producers.add(client.newProducer().topic(topic(prefix, i)).create());
        }
    }

    /** A message to each of these topics; each must reach one consumer within a minute. */
    private static void send(List<Producer<byte[]>> producers, int from, int to) throws Exception {
        for (int i = from; i < to; i++) {
            producers.get(i).send(new byte[1]);
        }
        for (int i = 0; i < 6000 && RECEIVED.get() < to; i++) {
            Thread.sleep(10);
        }
    }
}
