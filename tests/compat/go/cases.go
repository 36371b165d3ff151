// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
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
	return must(pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: os.Getenv("PULSAR_ADMIN_URL")}))
}

func numbered(prefix string, count int) []string {
	var texts []string
	for i := range count {
		texts = append(texts, fmt.Sprintf("%s-%d", prefix, i))
	}
	return texts
}

var cases = []testCase{
	{"produce-sync", "each send returns a later id", func(t *c) {
		ids := send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), "a", "b")
		want(ids[1].EntryID() > ids[0].EntryID(), "ids do not grow: %v", ids)
	}},
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
	{"keys-and-properties", "key, ordering key, properties and event time arrive", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{})
		at := time.UnixMilli(1234567)
		must(t.producer(pulsar.ProducerOptions{}).Send(background, &pulsar.ProducerMessage{
			Payload: []byte("x"), Key: "k", OrderingKey: "o", Properties: map[string]string{"a": "b"}, EventTime: at,
		}))
		m := receive(consumer)
		want(m.Key() == "k" && m.OrderingKey() == "o" && m.Properties()["a"] == "b" && m.EventTime().Equal(at), "%v", m)
	}},
	{"delayed", "a delayed message comes late, one without delay before it", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
		producer := t.producer(pulsar.ProducerOptions{DisableBatching: true})
		must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte("late"), DeliverAfter: 3 * time.Second}))
		send(producer, "now")
		want(slices.Equal(receiveTexts(consumer, 2), []string{"now", "late"}), "wrong order")
	}},
	{"access-exclusive", "the second exclusive producer is fenced off", func(t *c) {
		t.producer(pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeExclusive})
		_, err := t.CreateProducer(pulsar.ProducerOptions{Topic: t.topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive})
		want(err != nil, "a second exclusive producer was let in")
	}},
	{"access-wait", "a waiting producer gets its turn", func(t *c) {
		first := t.producer(pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive})
		made := make(chan error, 1)
		go func() {
			_, err := t.CreateProducer(pulsar.ProducerOptions{Topic: t.topic, ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive})
			made <- err
		}()
		select {
		case err := <-made:
			want(false, "it did not wait: %v", err)
		case <-time.After(500 * time.Millisecond):
		}
		first.Close()
		ok(<-made)
	}},
	{"deduplication", "a sequence id that was sent before leaves nothing", func(t *c) {
		namespace := "public/go-dedup-" + strings.ReplaceAll(t.topic[strings.LastIndex(t.topic, "/")+1:], "go-", "")
		ok(admin().Namespaces().CreateNamespace(namespace))
		ok(admin().Namespaces().SetDeduplicationStatus(namespace, true))
		topic := "persistent://" + namespace + "/t"
		consumer := t.consumer(pulsar.ConsumerOptions{Topic: topic})
		producer := t.producer(pulsar.ProducerOptions{Topic: topic, Name: "p", DisableBatching: true})
		for _, sequence := range []int64{1, 2, 2, 1, 3} {
			must(producer.Send(background, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(sequence)), SequenceID: &sequence}))
		}
		want(slices.Equal(receiveTexts(consumer, 3), []string{"1", "2", "3"}), "duplicates came through")
		nothing(consumer, 300*time.Millisecond)
	}},
	{"exclusive", "a second exclusive consumer is refused", func(t *c) {
		t.consumer(pulsar.ConsumerOptions{})
		_, err := t.Subscribe(pulsar.ConsumerOptions{Topic: t.topic, SubscriptionName: "s"})
		want(err != nil, "it was let in")
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
	{"shared", "two consumers share everything between them", func(t *c) {
		first := t.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
		second := t.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
		texts := numbered("m", 100)
		send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), texts...)
		var got []string
		for len(got) < 100 {
			select {
			case message := <-first.Chan():
				got = append(got, string(message.Payload()))
				ok(first.Ack(message))
			case message := <-second.Chan():
				got = append(got, string(message.Payload()))
				ok(second.Ack(message))
			case <-time.After(10 * time.Second):
				want(false, "only %d of 100 came", len(got))
			}
		}
		slices.Sort(got)
		slices.Sort(texts)
		want(slices.Equal(got, texts), "something is missing or twice")
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
	{"key-shared-sticky", "sticky ranges are kept, and overlapping ones refused", func(t *c) {
		low := must(pulsar.NewKeySharedPolicySticky([]int{0, 32767}))
		high := must(pulsar.NewKeySharedPolicySticky([]int{32768, 65535}))
		t.consumer(pulsar.ConsumerOptions{Type: pulsar.KeyShared, KeySharedPolicy: low})
		second := t.consumer(pulsar.ConsumerOptions{Type: pulsar.KeyShared, KeySharedPolicy: high})
		_, err := t.Subscribe(pulsar.ConsumerOptions{
			Topic: t.topic, SubscriptionName: "s", Type: pulsar.KeyShared, KeySharedPolicy: low,
		})
		want(err != nil, "an overlapping range was let in")
		// The hash of "hello" is in the upper half (64071).
		must(t.producer(pulsar.ProducerOptions{}).Send(background, &pulsar.ProducerMessage{Payload: []byte("x"), Key: "hello"}))
		receive(second)
	}},
	{"initial-position", "earliest sees what was there before, latest does not", func(t *c) {
		producer := t.producer(pulsar.ProducerOptions{DisableBatching: true})
		send(producer, "before")
		early := t.consumer(pulsar.ConsumerOptions{SubscriptionName: "e", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest})
		late := t.consumer(pulsar.ConsumerOptions{SubscriptionName: "l", SubscriptionInitialPosition: pulsar.SubscriptionPositionLatest})
		send(producer, "after")
		want(string(receive(early).Payload()) == "before", "earliest began late")
		want(string(receive(late).Payload()) == "after", "latest began early")
	}},
	{"ack-cumulative", "one cumulative acknowledgement covers all before it", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{AckWithResponse: true})
		send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), "a", "b", "c")
		receive(consumer)
		ok(consumer.AckCumulative(receive(consumer)))
		consumer.Close()
		want(string(receive(t.consumer(pulsar.ConsumerOptions{})).Payload()) == "c", "it did not cover")
	}},
	{"ack-individual", "what is not acknowledged comes again to the next consumer", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared, AckWithResponse: true})
		send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), "a", "b", "c")
		receive(consumer)
		ok(consumer.Ack(receive(consumer)))
		receive(consumer)
		consumer.Close()
		again := t.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
		got := receiveTexts(again, 2)
		slices.Sort(got)
		want(slices.Equal(got, []string{"a", "c"}), "got %v", got)
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
	{"redelivery-count", "it grows with each delivery", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared, NackRedeliveryDelay: 200 * time.Millisecond})
		send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), "a")
		for count := range uint32(3) {
			message := receive(consumer)
			want(message.RedeliveryCount() == count, "%d, want %d", message.RedeliveryCount(), count)
			consumer.Nack(message)
		}
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
	{"seek-time", "seeking to the past delivers all of it", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
		producer := t.producer(pulsar.ProducerOptions{DisableBatching: true})
		before := time.Now().Add(-time.Second)
		send(producer, "a", "b")
		receiveTexts(consumer, 2)
		ok(consumer.SeekByTime(before))
		want(string(receive(consumer).Payload()) == "a", "wrong place")
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
	{"unsubscribe", "the subscription is gone", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{})
		ok(consumer.Unsubscribe())
		topic := must(utils.GetTopicName(t.topic))
		want(len(must(admin().Subscriptions().List(*topic))) == 0, "it is still listed")
	}},
	{"last-message-id", "it is that of the last send", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{})
		ids := send(t.producer(pulsar.ProducerOptions{DisableBatching: true}), "a", "b")
		last := must(consumer.GetLastMessageIDs())[0]
		want(last.EntryID() == ids[1].EntryID() && last.LedgerID() == ids[1].LedgerID(), "%v, want %v", last, ids[1])
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
	{"multi-topics", "one consumer reads several topics", func(t *c) {
		other := t.topic + "-other"
		consumer := t.consumer(pulsar.ConsumerOptions{Topics: []string{t.topic, other}})
		send(t.producer(pulsar.ProducerOptions{}), "a")
		send(t.producer(pulsar.ProducerOptions{Topic: other}), "b")
		got := receiveTexts(consumer, 2)
		slices.Sort(got)
		want(slices.Equal(got, []string{"a", "b"}), "got %v", got)
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
	{"non-persistent", "messages reach whoever is there", func(t *c) {
		topic := strings.Replace(t.topic, "persistent", "non-persistent", 1)
		consumer := t.consumer(pulsar.ConsumerOptions{Topic: topic})
		send(t.producer(pulsar.ProducerOptions{Topic: topic}), "a")
		receive(consumer)
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
		client := newClient(os.Getenv("PULSAR_ADMIN_URL"))
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
	{"no-transactions", "a client that wants them is told at once", func(t *c) {
		client, err := pulsar.NewClient(pulsar.ClientOptions{URL: os.Getenv("PULSAR_URL"), EnableTransaction: true})
		if err == nil {
			defer client.Close()
			_, err = client.NewTransaction(10 * time.Second)
		}
		want(err != nil, "a transaction was begun")
	}},
	{"subscription-properties", "they are shown in the statistics", func(t *c) {
		t.consumer(pulsar.ConsumerOptions{SubscriptionProperties: map[string]string{"a": "b"}})
		path := strings.Replace(t.topic, "persistent://", "/admin/v2/persistent/", 1) + "/stats"
		reply := must(http.Get(os.Getenv("PULSAR_ADMIN_URL") + path))
		defer reply.Body.Close()
		var stats struct {
			Subscriptions map[string]struct {
				SubscriptionProperties map[string]string `json:"subscriptionProperties"`
			} `json:"subscriptions"`
		}
		ok(json.NewDecoder(reply.Body).Decode(&stats))
		want(stats.Subscriptions["s"].SubscriptionProperties["a"] == "b", "got %+v", stats)
	}},
	{"produce-async", "fifty producers write side by side", func(t *c) {
		consumer := t.consumer(pulsar.ConsumerOptions{})
		var all sync.WaitGroup
		errs := make(chan error, 50)
		for range 50 {
			producer := t.producer(pulsar.ProducerOptions{})
			all.Add(1)
			go func() {
				defer all.Done()
				for _, text := range numbered("m", 20) {
					if _, err := producer.Send(background, &pulsar.ProducerMessage{Payload: []byte(text)}); err != nil {
						errs <- err
						return
					}
				}
			}()
		}
		all.Wait()
		close(errs)
		ok(errors.Join(<-errs))
		want(len(receiveTexts(consumer, 1000)) == 1000, "something is missing")
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
