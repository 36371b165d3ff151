// SPDX-License-Identifier: Apache-2.0
//! The Rust client pulsar-rs, case by case, against the brokers at PULSAR_URLS; see ../run.py for the contract.

mod kit;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures::{future::try_join_all, TryStreamExt};
use kit::{next, nothing, receive, restart_broker, send, At, Kit, Outcome, Strings};
use pulsar::{
    compression::{Compression, CompressionLz4, CompressionSnappy, CompressionZlib, CompressionZstd},
    consumer::{DeadLetterPolicy, InitialPosition},
    message::proto::{command_subscribe::SubType, schema::Type, Schema},
    reader::Reader,
    ConsumerOptions, ProducerOptions, TokioExecutor,
};
use regex::Regex;

#[tokio::main]
async fn main() -> Outcome {
    let mut kit = Kit::new();
    kit.run("produce-sync", "messages are received in the order of their receipts", produce).await?;
    kit.run("produce-async", "a thousand sends are received in order", produce_without_waiting).await?;
    kit.run("batching", "messages of one batch share an entry", batches).await?;
    kit.run("compression", "every codec comes back as it went", compression).await?;
    kit.run("keys-and-properties", "key, property and event time", keys).await?;
    kit.run("delayed", "a delayed message comes late, and not before the others", delayed).await?;
    kit.run("exclusive", "a second consumer is refused", exclusive).await?;
    kit.run("failover", "the second consumer goes on after the first has closed", failover).await?;
    kit.run("shared", "two consumers receive each message once", shared).await?;
    kit.run("key-shared", "a key stays with one consumer", key_shared).await?;
    kit.run("ack-cumulative", "what was acknowledged together does not come again", cumulative).await?;
    kit.run("negative-ack", "a refused message comes again", refused).await?;
    kit.run("dead-letter", "a message that is always refused goes to the dead letter topic", dead_letter).await?;
    kit.run("reader", "a reader starts at the earliest message and needs no acknowledgement", reader).await?;
    kit.run("last-message-id", "the last message's id is its receipt's", last_message_id).await?;
    kit.run("partitioned", "what goes to four partitions comes back", partitioned).await?;
    kit.run("pattern", "a pattern's topics are consumed together", pattern).await?;
    kit.run("schema-json", "a JSON schema is kept, and an incompatible one refused", schema).await?;
    kit.run("reconnect", "producer and consumer go on after the broker was killed", reconnect).await?;
    kit.exit()
}

async fn produce(at: At) -> Outcome {
    let mut producer = at.producer().await?;
    let first = producer.send_non_blocking("a").await?.await?.message_id.ok_or("no id")?;
    let second = producer.send_non_blocking("b").await?.await?.message_id.ok_or("no id")?;
    want!((second.ledger_id, second.entry_id) > (first.ledger_id, first.entry_id), "{first:?} {second:?}");
    let received = receive(&mut at.consumer(SubType::Exclusive).await?, 2).await?;
    want!(received == ["a", "b"], "{received:?}");
    Ok(())
}

async fn produce_without_waiting(at: At) -> Outcome {
    let mut producer = at.producer().await?;
    let sent: Vec<_> = (0..1000).map(|number| format!("m{number}")).collect();
    // The client's own queue of unsent messages holds a hundred.
    for some in sent.chunks(50) {
        let mut receipts = Vec::new();
        for text in some {
            receipts.push(producer.send_non_blocking(text).await?);
        }
        try_join_all(receipts).await?;
    }
    let received = receive(&mut at.consumer(SubType::Exclusive).await?, 1000).await?;
    want!(received == sent, "order was not kept");
    Ok(())
}

async fn batches(at: At) -> Outcome {
    let options = ProducerOptions { batch_size: Some(10), ..Default::default() };
    let mut producer = at.client.producer().with_topic(&at.topic).with_options(options).build().await?;
    let mut receipts = Vec::new();
    for number in 0..10 {
        receipts.push(producer.send_non_blocking(format!("m{number}")).await?);
    }
    try_join_all(receipts).await?;
    let mut consumer = at.consumer(SubType::Exclusive).await?;
    let mut entries = BTreeSet::new();
    for number in 0..10 {
        let message = next(&mut consumer).await?;
        want!(message.deserialize()? == format!("m{number}"), "order was not kept");
        want!(message.message_id().batch_index == Some(number), "{:?}", message.message_id());
        entries.insert(message.message_id().entry_id);
    }
    want!(entries.len() == 1, "entries {entries:?}");
    Ok(())
}

async fn compression(at: At) -> Outcome {
    let text = "again and ".repeat(200);
    let mut consumer = at.consumer(SubType::Exclusive).await?;
    for codec in [
        Compression::Lz4(CompressionLz4::default()),
        Compression::Zlib(CompressionZlib::default()),
        Compression::Zstd(CompressionZstd::default()),
        Compression::Snappy(CompressionSnappy::default()),
    ] {
        let told = format!("{codec:?}");
        let options = ProducerOptions { compression: Some(codec), ..Default::default() };
        let mut producer = at.client.producer().with_topic(&at.topic).with_options(options).build().await?;
        producer.send_non_blocking(&text).await?.await?;
        let message = next(&mut consumer).await?;
        want!(message.deserialize()? == text, "{told} changed it");
        want!(message.metadata().compression.is_some_and(|kind| kind > 0), "{told} did not compress");
    }
    Ok(())
}

async fn keys(at: At) -> Outcome {
    let mut producer = at.producer().await?;
    let message = producer.create_message().with_content("text").with_key("k").with_property("color", "red");
    message.event_time(1234).send_non_blocking().await?.await?;
    let message = next(&mut at.consumer(SubType::Exclusive).await?).await?;
    let metadata = message.metadata();
    let color = metadata.properties.iter().find(|property| property.key == "color").map(|one| one.value.as_str());
    want!(message.key().as_deref() == Some("k") && color == Some("red"), "{metadata:?}");
    want!(metadata.event_time == Some(1234), "{metadata:?}");
    Ok(())
}

async fn delayed(at: At) -> Outcome {
    let mut consumer = at.consumer(SubType::Shared).await?;
    let mut producer = at.producer().await?;
    let start = Instant::now();
    let late = producer.create_message().with_content("late").delay(Duration::from_secs(3))?;
    late.send_non_blocking().await?.await?;
    send(&mut producer, &["now"]).await?;
    let received = receive(&mut consumer, 2).await?;
    want!(received == ["now", "late"], "{received:?}");
    // Apache Pulsar may deliver a second early.
    want!(start.elapsed() >= Duration::from_secs(2), "it came after {:?}", start.elapsed());
    Ok(())
}

async fn exclusive(at: At) -> Outcome {
    let _first = at.consumer(SubType::Exclusive).await?;
    match tokio::time::timeout(Duration::from_secs(5), at.consumer(SubType::Exclusive)).await {
        // The client tries again for minutes: the broker says that the consumer is busy.
        Err(_) | Ok(Err(_)) => Ok(()),
        Ok(Ok(_)) => Err("the second consumer was let in".into()),
    }
}

async fn failover(at: At) -> Outcome {
    let mut first = at.consumer(SubType::Failover).await?;
    let mut second = at.consumer(SubType::Failover).await?;
    send(&mut at.producer().await?, &["a", "b"]).await?;
    let (active, other) = match receive(&mut first, 2).await {
        Ok(_) => (first, second),
        Err(_) => {
            receive(&mut second, 2).await?;
            (second, first)
        }
    };
    close(active).await?;
    send(&mut at.producer().await?, &["c"]).await?;
    let mut other = other;
    let received = receive(&mut other, 1).await?;
    want!(received == ["c"], "{received:?}");
    Ok(())
}

async fn close(mut consumer: Strings) -> Outcome {
    Ok(consumer.close().await?)
}

async fn shared(at: At) -> Outcome {
    let mut first = at.builder(SubType::Shared).with_topic(&at.topic).with_batch_size(5).build().await?;
    let mut second = at.builder(SubType::Shared).with_topic(&at.topic).with_batch_size(5).build().await?;
    let sent: BTreeSet<_> = (0..60).map(|number| format!("m{number}")).collect();
    let mut producer = at.producer().await?;
    for text in &sent {
        producer.send_non_blocking(text).await?.await?;
    }
    let (mut received, mut of_first) = (Vec::new(), 0);
    while received.len() < sent.len() {
        tokio::select! {
            one = receive(&mut first, 1) => { received.extend(one?); of_first += 1; }
            one = receive(&mut second, 1) => received.extend(one?),
        }
    }
    want!(received.into_iter().collect::<BTreeSet<_>>() == sent, "a message came twice");
    want!(0 < of_first && of_first < sent.len(), "one consumer received everything");
    Ok(())
}

async fn key_shared(at: At) -> Outcome {
    let mut first = at.consumer(SubType::KeyShared).await?;
    let mut second = at.consumer(SubType::KeyShared).await?;
    let mut producer = at.producer().await?;
    for number in 0..60 {
        let key = format!("k{}", number % 12);
        producer.create_message().with_content(key.clone()).with_key(key).send_non_blocking().await?.await?;
    }
    let (mut of_first, mut of_second) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..60 {
        tokio::select! {
            one = receive(&mut first, 1) => of_first.extend(one?),
            one = receive(&mut second, 1) => of_second.extend(one?),
        }
    }
    want!(of_first.is_disjoint(&of_second), "{of_first:?} {of_second:?}");
    want!(of_first.len() + of_second.len() == 12, "{of_first:?} {of_second:?}");
    Ok(())
}

async fn cumulative(at: At) -> Outcome {
    let mut consumer = at.consumer(SubType::Exclusive).await?;
    send(&mut at.producer().await?, &["a", "b", "c"]).await?;
    next(&mut consumer).await?;
    let second = next(&mut consumer).await?;
    consumer.cumulative_ack(&second).await?;
    next(&mut consumer).await?;
    close(consumer).await?;
    let received = receive(&mut at.consumer(SubType::Exclusive).await?, 1).await?;
    want!(received == ["c"], "{received:?}");
    Ok(())
}

async fn refused(at: At) -> Outcome {
    let mut consumer = at.consumer(SubType::Shared).await?;
    send(&mut at.producer().await?, &["a"]).await?;
    let message = next(&mut consumer).await?;
    consumer.nack(&message).await?;
    let received = receive(&mut consumer, 1).await?;
    want!(received == ["a"], "{received:?}");
    nothing(&mut consumer).await
}

async fn dead_letter(at: At) -> Outcome {
    let dead_letter_topic = format!("{}-dead", at.topic);
    let policy = DeadLetterPolicy { max_redeliver_count: 2, dead_letter_topic: dead_letter_topic.clone() };
    let mut dead: Strings = at.builder(SubType::Exclusive).with_topic(dead_letter_topic).build().await?;
    let builder = at.builder(SubType::Shared).with_topic(&at.topic).with_dead_letter_policy(policy);
    let mut consumer: Strings = builder.build().await?;
    send(&mut at.producer().await?, &["bad"]).await?;
    for _ in 0..2 {
        let message = next(&mut consumer).await?;
        consumer.nack(&message).await?;
    }
    // The client does what it does while somebody waits for its messages.
    let received = tokio::select! {
        received = receive(&mut dead, 1) => received?,
        other = consumer.try_next() => return Err(format!("delivered again: {:?}", other?.is_some()).into()),
    };
    want!(received == ["bad"], "{received:?}");
    Ok(())
}

async fn reader(at: At) -> Outcome {
    send(&mut at.producer().await?, &["a", "b"]).await?;
    for _ in 0..2 {
        let options = ConsumerOptions::default().with_initial_position(InitialPosition::Earliest);
        let builder = at.client.reader().with_topic(&at.topic).with_options(options);
        let mut reader: Reader<String, TokioExecutor> = builder.into_reader().await?;
        let mut texts = Vec::new();
        while texts.len() < 2 {
            let message = tokio::time::timeout(Duration::from_secs(30), reader.try_next()).await??;
            texts.push(message.ok_or("the reader ended")?.deserialize()?);
        }
        want!(texts == ["a", "b"], "{texts:?}");
    }
    Ok(())
}

async fn last_message_id(at: At) -> Outcome {
    let mut consumer = at.consumer(SubType::Exclusive).await?;
    let sent = at.producer().await?.send_non_blocking("a").await?.await?.message_id.ok_or("no id")?;
    let last = consumer.get_last_message_id().await?.remove(0);
    want!((last.ledger_id, last.entry_id) == (sent.ledger_id, sent.entry_id), "{last:?} {sent:?}");
    Ok(())
}

async fn partitioned(at: At) -> Outcome {
    let name = at.topic.rsplit('/').next().unwrap_or_default();
    at.admin("PUT", &format!("/admin/v2/persistent/public/default/{name}/partitions"), "4").await?;
    let mut producer = at.producer().await?;
    want!(producer.partitions().is_some_and(|names| names.len() == 4), "{:?}", producer.partitions());
    let mut consumer = at.consumer(SubType::Shared).await?;
    let sent: BTreeSet<_> = (0..20).map(|number| format!("m{number}")).collect();
    for text in &sent {
        producer.send_non_blocking(text).await?.await?;
    }
    let received: BTreeSet<_> = receive(&mut consumer, 20).await?.into_iter().collect();
    want!(received == sent, "{received:?}");
    Ok(())
}

async fn pattern(at: At) -> Outcome {
    for name in ["one", "two"] {
        let topic = format!("{}-{name}", at.topic);
        at.client.producer().with_topic(topic).build().await?.send_non_blocking(name).await?.await?;
    }
    let names = Regex::new(&format!("{}-.*", at.topic))?;
    let builder = at.builder(SubType::Exclusive).with_lookup_namespace("public/default").with_topic_regex(names);
    let received: BTreeSet<_> = receive(&mut builder.build().await?, 2).await?.into_iter().collect();
    want!(received == BTreeSet::from(["one".to_string(), "two".to_string()]), "{received:?}");
    Ok(())
}

async fn schema(at: At) -> Outcome {
    let of = |kind: &str| Schema {
        r#type: Type::Json as i32,
        schema_data: format!(
            r#"{{"type": "record", "name": "Person", "fields": [{{"name": "name", "type": "{kind}"}}]}}"#
        )
        .into_bytes(),
        ..Default::default()
    };
    let options = |kind| ProducerOptions { schema: Some(of(kind)), ..Default::default() };
    let mut producer = at.client.producer().with_topic(&at.topic).with_options(options("string")).build().await?;
    producer.send_non_blocking(r#"{"name": "Ada"}"#).await?.await?;
    let message = next(&mut at.consumer(SubType::Exclusive).await?).await?;
    want!(message.metadata().schema_version.is_some(), "no version of a schema");
    let kept =
        at.admin("GET", &format!("{}/schema", at.topic.replace("persistent://", "/admin/v2/schemas/")), "").await?;
    want!(kept.contains("Person"), "{kept}");
    match at.client.producer().with_topic(&at.topic).with_options(options("int")).build().await {
        Err(error) if error.to_string().contains("chema") => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err("an incompatible schema was let in".into()),
    }
}

async fn reconnect(at: At) -> Outcome {
    let mut consumer = at.consumer(SubType::Shared).await?;
    let mut producer = at.producer().await?;
    send(&mut producer, &["before"]).await?;
    want!(receive(&mut consumer, 1).await? == ["before"], "another message");
    restart_broker().await?;
    // The client tells the program that the connection was lost; the program sends again.
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Err(error) = send(&mut producer, &["after"]).await {
        want!(Instant::now() < deadline, "{error}");
    }
    // The acknowledgement, for which the client wants no receipt, may have died with the broker.
    while receive(&mut consumer, 1).await? != ["after"] {}
    Ok(())
}
