// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

var background = context.Background()

const person = `{"type":"record","name":"Person","fields":[{"name":"name","type":"string"},{"name":"age","type":"int"}]}`
const otherPerson = `{"type":"record","name":"Person","fields":[{"name":"name","type":"int"}]}`

type Person struct {
	Name string `json:"name" avro:"name"`
	Age  int    `json:"age" avro:"age"`
}

func admin() pulsaradmin.Client {
	return must(pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: adminURL()}))
}

func numbered(prefix string, count int) []string {
	var texts []string
	for i := range count {
		texts = append(texts, fmt.Sprintf("%s-%d", prefix, i))
	}
	return texts
}

// What Go's client does in a way of its own: batches, chunks, codecs, acknowledgements, letters, polling for partitions
// and patterns, readers, schemas, and its admin client. What every client sends alike, Python's and Java's cases cover.
var cases = []testCase{
	{"produce-async", "a thousand sends are received in order", func(t *c) {
		consumer, producer := t.consumer(pulsar.ConsumerOptions{}), t.producer(pulsar.ProducerOptions{})
		texts := numbered("m", 1000)
		for _, text := range texts {
			producer.SendAsync(background, &pulsar.ProducerMessage{Payload: []byte(text)},
				func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
		}
		ok(producer.Flush())
		want(slices.Equal(receiveTexts(consumer, 1000), texts), "order was not kept")
	}},
	{"batching", "messages of one batch share an entry", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{})
		producer := t.producer(pulsar.ProducerOptions{BatchingMaxMessages: 10, BatchingMaxPublishDelay: time.Second})
		for _, text := range numbered("m", 10) {
			producer.SendAsync(background, &pulsar.ProducerMessage{Payload: []byte(text)},
				func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
		}
		first := receive(consumer).ID()
		for i := range 9 {
			id := receive(consumer).ID()
			want(id.EntryID() == first.EntryID() && id.BatchIdx() == int32(i+1), "not one batch: %v %v", first, id)
		}
	}},
	{"compression", "every codec comes back as it went", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{})
		for _, codec := range []pulsar.CompressionType{pulsar.LZ4, pulsar.ZLib, pulsar.ZSTD, pulsar.SNAPPY} {
			text := strings.Repeat(fmt.Sprint("codec ", codec), 100)
			send(t.producer(pulsar.ProducerOptions{CompressionType: codec}), text)
			want(receiveTexts(consumer, 1)[0] == text, "codec %v", codec)
		}
	}},
	{"chunking", "12 MiB come back whole", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{})
		producer := t.producer(pulsar.ProducerOptions{EnableChunking: true, DisableBatching: true})
		payload := bytes.Repeat([]byte("0123456789abcdef"), 12<<16)
		must(producer.Send(background, &pulsar.ProducerMessage{Payload: payload}))
		want(bytes.Equal(receive(consumer).Payload(), payload), "the payload changed")
	}},
	{"failover", "the other consumer takes over when the active one leaves", func(t *c) {
		first := t.consumer(pulsar.ConsumerOptions{Type: pulsar.Failover, Name: "a"})
		second := t.consumer(pulsar.ConsumerOptions{Type: pulsar.Failover, Name: "b"})
		producer := t.producer(pulsar.ProducerOptions{DisableBatching: true})
		send(producer, "one")
		active, standby := first, second
		ctx, cancel := context.WithTimeout(background, 4*time.Second)
		defer cancel()
		message, err := first.Receive(ctx)
		if err != nil {
			active, standby = second, first
			message = receive(second)
		}
		ok(active.Ack(message))
		time.Sleep(300 * time.Millisecond) // acknowledgements are sent in groups
		active.Close()
		send(producer, "two")
		want(string(receive(standby).Payload()) == "two", "the standby did not take over")
	}},
	{"key-shared", "each key goes to one consumer, in order", func(t *c) {
		first := t.consumer(pulsar.ConsumerOptions{Type: pulsar.KeyShared})
		second := t.consumer(pulsar.ConsumerOptions{Type: pulsar.KeyShared})
		producer := t.producer(pulsar.ProducerOptions{BatcherBuilderType: pulsar.KeyBasedBatchBuilder})
		for i := range 200 {
			must(producer.Send(background, &pulsar.ProducerMessage{
				Payload: []byte(fmt.Sprintf("%04d", i)), Key: fmt.Sprint("key-", i%10),
			}))
		}
		owner, last := map[string]pulsar.Consumer{}, map[string]string{}
		take := func(consumer pulsar.Consumer, message pulsar.Message) {
			key, text := message.Key(), string(message.Payload())
			want(owner[key] == nil || owner[key] == consumer, "%s went to two consumers", key)
			want(text > last[key], "%s out of order", key)
			owner[key], last[key] = consumer, text
			ok(consumer.Ack(message))
		}
		for range 200 {
			select {
			case message := <-first.Chan():
				take(first, message)
			case message := <-second.Chan():
				take(second, message)
			case <-time.After(10 * time.Second):
				want(false, "something is missing")
			}
		}
	}},
	{"ack-cumulative", "one cumulative acknowledgement covers all before it", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{AckWithResponse: true})
		send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), "a", "b", "c")
		receive(consumer)
		ok(consumer.AckCumulative(receive(consumer)))
		consumer.Close()
		want(string(receive(t.consumer(pulsar.ConsumerOptions{})).Payload()) == "c", "it did not cover")
	}},
	{"ack-batch-index", "acknowledged members of a batch do not come again", func(t *c) {
		options := pulsar.ConsumerOptions{Type: pulsar.Shared, EnableBatchIndexAcknowledgment: true, AckWithResponse: true}
		consumer := t.consumer(options)
		producer := t.producer(pulsar.ProducerOptions{BatchingMaxMessages: 5, BatchingMaxPublishDelay: time.Second})
		for _, text := range numbered("m", 5) {
			producer.SendAsync(background, &pulsar.ProducerMessage{Payload: []byte(text)},
				func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
		}
		for i := range 5 {
			if message := receive(consumer); i%2 == 0 {
				ok(consumer.Ack(message))
			}
		}
		consumer.Close()
		got := receiveTexts(t.consumer(options), 2)
		want(slices.Equal(got, []string{"m-1", "m-3"}), "got %v", got)
	}},
	{"ack-receipt", "an acknowledgement waits for the broker's answer", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{AckWithResponse: true})
		send(t.producer(pulsar.ProducerOptions{}), "a")
		ok(consumer.Ack(receive(consumer)))
	}},
	{"negative-ack", "it comes again, counted", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared, NackRedeliveryDelay: 300 * time.Millisecond})
		send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), "a")
		consumer.Nack(receive(consumer))
		receive(consumer)
	}},
	{"dead-letter", "after its deliveries a message goes to the dead-letter topic", func(t *c) {
		dlq := t.topic + "-s-DLQ"
		dead := t.consumer(pulsar.ConsumerOptions{Topic: dlq})
		consumer := t.consumer(pulsar.ConsumerOptions{
			Type: pulsar.Shared, NackRedeliveryDelay: 200 * time.Millisecond,
			DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: dlq},
		})
		send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), "a")
		consumer.Nack(receive(consumer))
		consumer.Nack(receive(consumer))
		want(string(receive(dead).Payload()) == "a", "wrong message")
	}},
	{"retry-letter", "a message told to come later comes through the retry topic", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{
			Type: pulsar.Shared, RetryEnable: true, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
			DLQ: &pulsar.DLQPolicy{MaxDeliveries: 3},
		})
		send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), "a")
		consumer.ReconsumeLater(receive(consumer), 500*time.Millisecond)
		again := receive(consumer)
		want(string(again.Payload()) == "a" && again.Properties()["RECONSUMETIMES"] == "1", "%v", again.Properties())
	}},
	{"seek-id", "seeking to an id delivers from there", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{StartMessageIDInclusive: true})
		ids := send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), "a", "b", "c")
		receiveTexts(consumer, 3)
		ok(consumer.Seek(ids[1]))
		want(string(receive(consumer).Payload()) == "b", "wrong place")
	}},
	{"receiving", "through a channel, and without a queue", func(t *c) {
		channel := make(chan pulsar.ConsumerMessage, 8)
		t.consumer(pulsar.ConsumerOptions{SubscriptionName: "channel", MessageChannel: channel})
		without := t.consumer(pulsar.ConsumerOptions{EnableZeroQueueConsumer: true})
		texts := numbered("m", 8)
		send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), texts...)
		want(slices.Equal(receiveTexts(without, 8), texts), "without a queue")
		for _, text := range texts {
			want(string((<-channel).Payload()) == text, "through a channel")
		}
	}},
	{"reader", "it begins where it is told", func(t *c) {
		ids := send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), numbered("m", 10)...)
		reader := must(t.CreateReader(pulsar.ReaderOptions{Topic: t.topic, StartMessageID: ids[4]}))
		defer reader.Close()
		want(string(must(reader.Next(background)).Payload()) == "m-5", "wrong place")
	}},
	{"reader-has-next", "it knows the end", func(t *c) {
		send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), "a", "b")
		reader := must(t.CreateReader(pulsar.ReaderOptions{Topic: t.topic, StartMessageID: pulsar.EarliestMessageID()}))
		defer reader.Close()
		count := 0
		for reader.HasNext() {
			must(reader.Next(background))
			count++
		}
		want(count == 2, "read %d", count)
	}},
	{"read-compacted", "the last value of each key is left", func(t *c) {
		producer := t.producer(pulsar.ProducerOptions{DisableBatching: true})
		for i := range 6 {
			must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(i)), Key: fmt.Sprint(i % 2)}))
		}
		topic := must(utils.GetTopicName(t.topic))
		ok(admin().Topics().Compact(*topic))
		for {
			status := must(admin().Topics().CompactStatus(*topic))
			if status.Status == utils.SUCCESS {
				break
			}
			want(status.Status != utils.ERROR, "compaction failed: %s", status.LastError)
			time.Sleep(100 * time.Millisecond)
		}
		consumer := t.consumer(pulsar.ConsumerOptions{
			ReadCompacted: true, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		})
		got := receiveTexts(consumer, 2)
		want(slices.Equal(got, []string{"4", "5"}), "got %v", got)
	}},
	{"table-view", "it shows the last value of each key", func(t *c) {
		producer := t.producer(pulsar.ProducerOptions{DisableBatching: true, Schema: pulsar.NewStringSchema(nil)})
		for i := range 4 {
			must(producer.Send(background, &pulsar.ProducerMessage{Value: fmt.Sprint(i), Key: fmt.Sprint(i % 2)}))
		}
		view := must(t.CreateTableView(pulsar.TableViewOptions{Topic: t.topic, Schema: pulsar.NewStringSchema(nil), SchemaValueType: reflect.TypeFor[*string]()}))
		defer view.Close()
		deadline := time.Now().Add(10 * time.Second)
		for view.Size() < 2 && time.Now().Before(deadline) {
			time.Sleep(50 * time.Millisecond)
		}
		value, _ := view.Get("1").(*string)
		want(value != nil && *value == "3", "got %v", view.Entries())
	}},
	{"partitioned", "all partitions are written and read", func(t *c) {
		ok(admin().Topics().Create(*must(utils.GetTopicName(t.topic)), 3))
		consumer, producer := t.consumer(pulsar.ConsumerOptions{}), t.producer(pulsar.ProducerOptions{DisableBatching: true})
		partitions := map[int32]bool{}
		for _, id := range send(producer, numbered("m", 30)...) {
			partitions[id.PartitionIdx()] = true
		}
		want(len(partitions) == 3, "used partitions %v", partitions)
		want(len(receiveTexts(consumer, 30)) == 30, "something is missing")
	}},
	{"partition-growth", "a producer uses partitions that were added", func(t *c) {
		topic := *must(utils.GetTopicName(t.topic))
		ok(admin().Topics().Create(topic, 1))
		producer := t.producer(pulsar.ProducerOptions{PartitionsAutoDiscoveryInterval: time.Second})
		ok(admin().Topics().Update(topic, 2))
		want(len(must(t.TopicPartitions(t.topic))) == 2, "the client does not see the new partition")
		for send(producer, "a")[0].PartitionIdx() != 1 { // the limit of the case ends it, should it never get there
		}
	}},
	{"pattern", "topics that match are read, also those made later", func(t *c) {
		send(t.producer(pulsar.ProducerOptions{Topic: t.topic + "-1"}), "old")
		consumer := t.consumer(pulsar.ConsumerOptions{
			TopicsPattern: t.topic + "-[0-9]", AutoDiscoveryPeriod: 500 * time.Millisecond,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		})
		want(string(receive(consumer).Payload()) == "old", "wrong message")
		send(t.producer(pulsar.ProducerOptions{Topic: t.topic + "-2"}), "new")
		want(string(receive(consumer).Payload()) == "new", "wrong message")
	}},
	{"schema-primitive", "a string and an integer", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{Schema: pulsar.NewStringSchema(nil)})
		producer := t.producer(pulsar.ProducerOptions{Schema: pulsar.NewStringSchema(nil)})
		must(producer.Send(background, &pulsar.ProducerMessage{Value: "text"}))
		var text *string
		ok(receive(consumer).GetSchemaValue(&text))
		want(*text == "text", "got %v", *text)
	}},
	{"schema-json", "a record", func(t *c) { schemaCase(t, pulsar.NewJSONSchema(person, nil)) }},
	{"schema-avro", "a record", func(t *c) { schemaCase(t, pulsar.NewAvroSchema(person, nil)) }},
	{"schema-evolution", "an incompatible schema is refused", func(t *c) {
		t.producer(pulsar.ProducerOptions{Schema: pulsar.NewAvroSchema(person, nil)})
		_, err := t.CreateProducer(pulsar.ProducerOptions{Topic: t.topic, Schema: pulsar.NewAvroSchema(otherPerson, nil)})
		want(err != nil && strings.Contains(err.Error(), "IncompatibleSchema"), "got %v", err)
	}},
	{"admin-topics", "created, listed, measured, deleted", func(t *c) {
		topic := *must(utils.GetTopicName(t.topic))
		topics := admin().Topics()
		ok(topics.Create(topic, 0))
		_, listed, err := topics.List(*must(utils.GetNamespaceName("public/default")))
		ok(err)
		want(slices.Contains(listed, t.topic), "it is not listed")
		t.consumer(pulsar.ConsumerOptions{})
		send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), "a", "b")
		stats := must(topics.GetStats(topic))
		want(stats.Subscriptions["s"].MsgBacklog == 2, "%+v", stats)
		want(must(topics.GetInternalStats(topic)).NumberOfEntries == 2, "internal stats")
		ok(topics.Delete(topic, true, true))
	}},
	{"admin-namespaces", "tenant, namespace, policies, permissions", func(t *c) {
		tenant := fmt.Sprint("go-tenant-", os.Getpid())
		a := admin()
		cluster := must(a.Clusters().List())[0]
		ok(a.Tenants().Create(utils.TenantData{Name: tenant, AllowedClusters: []string{cluster}}))
		namespace := tenant + "/ns"
		ok(a.Namespaces().CreateNamespace(namespace))
		ok(a.Namespaces().SetRetention(namespace, utils.NewRetentionPolicies(10, 5)))
		retention := must(a.Namespaces().GetRetention(namespace))
		want(retention.RetentionTimeInMinutes == 10 && retention.RetentionSizeInMB == 5, "%+v", retention)
		ok(a.Namespaces().SetNamespaceMessageTTL(namespace, 60))
		want(must(a.Namespaces().GetNamespaceMessageTTL(namespace)) == 60, "TTL")
		ok(a.Namespaces().SetBacklogQuota(namespace, utils.NewBacklogQuota(1<<20, 0, utils.ProducerException), utils.DestinationStorage))
		want(must(a.Namespaces().GetBacklogQuotaMap(namespace))[utils.DestinationStorage].LimitSize == 1<<20, "quota")
		name := *must(utils.GetNamespaceName(namespace))
		ok(a.Namespaces().GrantNamespacePermission(name, "role", []utils.AuthAction{"produce"}))
		want(len(must(a.Namespaces().GetNamespacePermissions(name))["role"]) == 1, "permissions")
		want(slices.Contains(must(a.Namespaces().GetNamespaces(tenant)), namespace), "it is not listed")
		ok(a.Namespaces().DeleteNamespace(namespace))
		ok(a.Tenants().Delete(tenant))
	}},
	{"admin-subscriptions", "create, skip, reset, peek, clear", func(t *c) {
		topic := *must(utils.GetTopicName(t.topic))
		subscriptions := admin().Subscriptions()
		ids := send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), numbered("m", 5)...)
		ok(subscriptions.Create(topic, "s", utils.Earliest))
		want(len(must(subscriptions.PeekMessages(topic, "s", 2))) == 2, "peek")
		ok(subscriptions.SkipMessages(topic, "s", 2))
		want(must(admin().Topics().GetStats(topic)).Subscriptions["s"].MsgBacklog == 3, "skip")
		id := utils.MessageID{LedgerID: ids[1].LedgerID(), EntryID: ids[1].EntryID(), PartitionIndex: -1}
		ok(subscriptions.ResetCursorToMessageID(topic, "s", id))
		ok(subscriptions.ClearBacklog(topic, "s"))
		want(must(admin().Topics().GetStats(topic)).Subscriptions["s"].MsgBacklog == 0, "clear")
		ok(subscriptions.Delete(topic, "s"))
	}},
	{"admin-schemas", "a schema is uploaded, read and deleted", func(t *c) {
		ok(admin().Topics().Create(*must(utils.GetTopicName(t.topic)), 0))
		schemas := admin().Schemas()
		ok(schemas.CreateSchemaByPayload(t.topic, utils.PostSchemaPayload{SchemaType: "AVRO", Schema: person, Properties: map[string]string{}}))
		info := must(schemas.GetSchemaInfo(t.topic))
		want(info.Type == "AVRO" && strings.Contains(string(info.Schema), "Person"), "%+v", info)
		ok(schemas.DeleteSchema(t.topic))
	}},
	{"admin-brokers", "health, brokers, a dynamic setting", func(t *c) {
		brokers := admin().Brokers()
		ok(brokers.HealthCheck())
		want(len(must(brokers.GetDynamicConfigurationNames())) > 0, "no dynamic names")
		ok(brokers.UpdateDynamicConfiguration("maxConcurrentLookupRequest", "40000"))
		want(must(brokers.GetAllDynamicConfigurations())["maxConcurrentLookupRequest"] == "40000", "not set")
		ok(brokers.DeleteDynamicConfiguration("maxConcurrentLookupRequest"))
	}},
	{"http-lookup", "topics and patterns are found over HTTP", func(t *c) {
		client := newClient(adminURL())
		defer client.Close()
		over := &c{client, t.topic}
		ok(admin().Topics().Create(*must(utils.GetTopicName(t.topic)), 2))
		want(len(must(client.TopicPartitions(t.topic))) == 2, "not two partitions")
		send(over.producer(pulsar.ProducerOptions{}), "a")
		send(over.producer(pulsar.ProducerOptions{Topic: t.topic + "-alone"}), "b")
		consumer := over.consumer(pulsar.ConsumerOptions{
			TopicsPattern: t.topic + ".*", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		})
		got := receiveTexts(consumer, 2)
		slices.Sort(got)
		want(slices.Equal(got, []string{"a", "b"}), "got %v", got)
	}},
	{"transactions", "what was sent and acknowledged counts at the commit", func(t *c) {
		client := must(pulsar.NewClient(pulsar.ClientOptions{URL: serviceURL(), EnableTransaction: true}))
		defer client.Close()
		over := &c{client, t.topic}
		out := t.topic + "-out"
		in, results := over.consumer(pulsar.ConsumerOptions{}), over.consumer(pulsar.ConsumerOptions{Topic: out})
		send(over.producer(pulsar.ProducerOptions{}), "a")
		writing := over.producer(pulsar.ProducerOptions{Topic: out})
		message := receive(in)
		transaction := must(client.NewTransaction(time.Minute))
		must(writing.Send(background, &pulsar.ProducerMessage{Payload: []byte("b"), Transaction: transaction}))
		ok(in.AckWithTxn(message, transaction))
		nothing(results, 300*time.Millisecond)
		ok(transaction.Commit(background))
		got := receiveTexts(results, 1)
		want(slices.Equal(got, []string{"b"}), "got %v", got)
		in.Close()
		nothing(over.consumer(pulsar.ConsumerOptions{}), 500*time.Millisecond)
	}},
}

func schemaCase(t *c, schema pulsar.Schema) {
	consumer := t.consumer(pulsar.ConsumerOptions{Schema: schema})
	producer := t.producer(pulsar.ProducerOptions{Schema: schema})
	must(producer.Send(background, &pulsar.ProducerMessage{Value: &Person{"Ada", 36}}))
	message, found := receive(consumer), Person{}
	ok(message.GetSchemaValue(&found))
	want(found == Person{"Ada", 36}, "got %+v", found)
	want(len(message.SchemaVersion()) == 8, "schema version %v", message.SchemaVersion())
}
