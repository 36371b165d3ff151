// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import static penstock.compat.Kit.eventually;
import static penstock.compat.Kit.want;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.testcontainers.containers.wait.strategy.Wait;
import org.testcontainers.pulsar.PulsarContainer;
import org.testcontainers.utility.DockerImageName;

/**
 * Tests as people write them with Testcontainers' Pulsar module: the module starts the image, decides when it is ready,
 * and says where its clients connect. The engine at DOCKER_HOST makes processes of containers (../engine.py).
 */
public final class Containers {
    private static final int CASE_TIMEOUT_S = 180;
    private static final int WAIT_S = 60;
    private static final DockerImageName IMAGE =
            DockerImageName.parse("penstock:latest").asCompatibleSubstituteFor("apachepulsar/pulsar");

    private Containers() {
    }

    public static void main(String[] arguments) throws Exception {
        Kit kit = new Kit("testcontainers", CASE_TIMEOUT_S, arguments);
        kit.run("containers", "a container is ready when the module says so, and is gone when it is stopped",
                Containers::isReady);
        kit.run("containers", "settings in the environment of a container are the broker's", Containers::isConfigured);
        kit.run("containers", "a container can be waited for by its log", Containers::logs);
        kit.run("mapped-port", "clients of a container stay on its mapped ports", Containers::passesMessages);
        kit.run("transactions", "a container with transactions commits and aborts", Containers::commits);
        kit.exit();
    }

    private static PulsarContainer container() {
        return new PulsarContainer(IMAGE).withStartupTimeout(Duration.ofSeconds(WAIT_S));
    }

    private static void isReady() throws Exception {
        PulsarContainer container = container();
        try (container) {
            container.start();
            want(container.isRunning(), "it does not run");
            try (PulsarAdmin admin = admin(container)) {
                want(admin.namespaces().getNamespaces("public").contains("public/default"), "no public/default");
                admin.brokers().healthcheck();
            }
        }
        want(!container.isRunning(), "it still runs");
    }

    private static void isConfigured() throws Exception {
        try (PulsarContainer container = container().withEnv("PULSAR_PREFIX_clusterName", "mine")
                .withEnv("PULSAR_PREFIX_brokerDeleteInactiveTopicsEnabled", "false")) {
            container.start();
            try (PulsarAdmin admin = admin(container)) {
                want(admin.clusters().getClusters().equals(List.of("mine")), admin.clusters().getClusters());
                String set = admin.brokers().getRuntimeConfigurations().get("brokerDeleteInactiveTopicsEnabled");
                want("false".equals(set), "brokerDeleteInactiveTopicsEnabled is", set);
            }
        }
    }

    private static void logs() throws Exception {
        try (PulsarContainer container = container()
                .waitingFor(Wait.forLogMessage(".*messaging service is ready.*", 1))) {
            container.start();
            eventually(true, WAIT_S, () -> container.getLogs().contains("Created namespace public/default"));
        }
    }

    private static void passesMessages() throws Exception {
        try (PulsarContainer container = container()) {
            container.start();
            try (PulsarAdmin admin = admin(container); PulsarClient client = client(container)) {
                admin.topics().createPartitionedTopic("orders", 3);
                try (var consumer = client.newConsumer(Schema.STRING).topic("orders").subscriptionName("s")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
                        var producer = client.newProducer(Schema.STRING).topic("orders").create()) {
                    for (int number = 0; number < 30; number++) {
                        producer.send("order " + number);
                    }
                    for (int number = 0; number < 30; number++) {
                        Message<String> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
                        want(message != null, "only", number, "messages came");
                        consumer.acknowledge(message);
                    }
                }
                // Over HTTP, too, clients are sent to nowhere else.
                want(admin.lookups().lookupTopic("orders-partition-0") != null, "no lookup");
            }
        }
    }

    private static void commits() throws Exception {
        try (PulsarContainer container = container().withTransactions()) {
            container.start();
            try (PulsarClient client = PulsarClient.builder().serviceUrl(container.getPulsarBrokerUrl())
                    .enableTransaction(true).build();
                    var producer = client.newProducer(Schema.STRING).topic("t").create();
                    var reader = client.newReader(Schema.STRING).topic("t")
                            .startMessageId(MessageId.earliest).create()) {
                for (String text : List.of("no", "yes")) {
                    Transaction transaction = client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES)
                            .build().get(WAIT_S, TimeUnit.SECONDS);
                    producer.newMessage(transaction).value(text).send();
                    (text.equals("yes") ? transaction.commit() : transaction.abort()).get(WAIT_S, TimeUnit.SECONDS);
                }
                Message<String> first = reader.readNext(WAIT_S, TimeUnit.SECONDS);
                want(first != null && first.getValue().equals("yes"), first);
            }
        }
    }

    private static PulsarAdmin admin(PulsarContainer container) throws Exception {
        return PulsarAdmin.builder().serviceHttpUrl(container.getHttpServiceUrl()).build();
    }

    private static PulsarClient client(PulsarContainer container) throws Exception {
        return PulsarClient.builder().serviceUrl(container.getPulsarBrokerUrl()).build();
    }
}
