// SPDX-License-Identifier: Apache-2.0
//! What all cases have at hand: how they are run and reported, and requests to the admin port.

use std::{env, error::Error, fs::OpenOptions, future::Future, io::Write, process, time::Duration};

use futures::{FutureExt, TryStreamExt};
use pulsar::{
    consumer::{InitialPosition, Message},
    message::proto::command_subscribe::SubType,
    Consumer, ConsumerOptions, Producer, Pulsar, TokioExecutor,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// A case takes a second or a few; on a busy machine many. One that takes this long hangs.
const CASE_TIMEOUT: Duration = Duration::from_secs(90);
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);
/// That no message comes can only be waited for.
const SILENCE: Duration = Duration::from_millis(700);

pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;
pub type Strings = Consumer<String, TokioExecutor>;

/// Fail a case unless the condition holds.
#[macro_export]
macro_rules! want {
    ($condition:expr, $($told:tt)+) => {
        if !$condition {
            return Err(format!($($told)+).into());
        }
    };
}

/// Runs cases one after another, each with a topic of its own and the next pair of addresses.
pub struct Kit {
    only: Option<String>,
    turn: usize,
    failed: usize,
}

/// What a case has at hand: a client of its own, and a topic that nobody else uses.
pub struct At {
    pub client: Pulsar<TokioExecutor>,
    pub topic: String,
    admin_url: String,
}

impl Kit {
    pub fn new() -> Self {
        Kit { only: env::args().nth(1), turn: 0, failed: 0 }
    }

    /// Run a case, print its outcome and add it to the results.
    pub async fn run<F, R>(&mut self, feature: &str, name: &str, body: F) -> Outcome
    where
        F: FnOnce(At) -> R,
        R: Future<Output = Outcome>,
    {
        self.turn += 1;
        if self.only.as_deref().is_some_and(|only| only != feature) {
            return Ok(());
        }
        let case = async { body(At::new(self.turn).await?).await };
        let why = match timeout(CASE_TIMEOUT, std::panic::AssertUnwindSafe(case).catch_unwind()).await {
            Err(_) => format!("did not end within {} s", CASE_TIMEOUT.as_secs()),
            Ok(Err(_)) => "panicked".to_string(),
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Ok(Ok(()))) => String::new(),
        };
        let outcome = if why.is_empty() { "passed" } else { "failed" };
        self.failed += usize::from(!why.is_empty());
        println!("{outcome:7} {feature:24} {name} {why}");
        let line = json!({"client": "rust", "feature": feature, "case": name, "outcome": outcome, "why": why});
        let mut results = OpenOptions::new().append(true).open(env::var("COMPAT_RESULTS")?)?;
        Ok(writeln!(results, "{line}")?)
    }

    /// End this process, with status 1 if a case failed.
    pub fn exit(self) -> ! {
        process::exit(i32::from(self.failed > 0))
    }
}

impl At {
    async fn new(turn: usize) -> Outcome<Self> {
        let client = Pulsar::builder(turn_of("PULSAR_URLS", turn)?, TokioExecutor).build().await?;
        let topic = format!("persistent://public/default/rust-{}-{turn}", process::id());
        Ok(At { client, topic, admin_url: turn_of("PULSAR_ADMIN_URLS", turn)? })
    }

    pub async fn producer(&self) -> Outcome<Producer<TokioExecutor>> {
        Ok(self.client.producer().with_topic(&self.topic).build().await?)
    }

    pub async fn consumer(&self, kind: SubType) -> Outcome<Strings> {
        Ok(self.builder(kind).with_topic(&self.topic).build().await?)
    }

    /// A consumer that starts at the earliest message of topics that are still to be named.
    pub fn builder(&self, kind: SubType) -> pulsar::ConsumerBuilder<TokioExecutor> {
        let options = ConsumerOptions::default().with_initial_position(InitialPosition::Earliest);
        self.client.consumer().with_subscription("s").with_subscription_type(kind).with_options(options)
    }

    /// Send a request to the admin port, and return the body of its answer.
    pub async fn admin(&self, method: &str, path: &str, body: &str) -> Outcome<String> {
        http(method, &format!("{}{path}", self.admin_url), body).await
    }
}

fn turn_of(variable: &str, turn: usize) -> Outcome<String> {
    let addresses = env::var(variable)?;
    let addresses: Vec<_> = addresses.split(',').collect();
    Ok(addresses[turn % addresses.len()].to_string())
}

/// Kill the broker and wait until it serves again, at the same ports.
pub async fn restart_broker() -> Outcome {
    http("POST", &env::var("COMPAT_RESTART")?, "").await.map(drop)
}

async fn http(method: &str, url: &str, body: &str) -> Outcome<String> {
    let (host, path) = url.trim_start_matches("http://").split_once('/').unwrap_or((url, ""));
    let mut stream = TcpStream::connect(host).await?;
    let length = body.len();
    let head = format!("{method} /{path} HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\n");
    stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("the answer has no body")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    want!(status.starts_with('2'), "{method} /{path}: {status} {body}");
    Ok(body.to_string())
}

pub async fn send(producer: &mut Producer<TokioExecutor>, texts: &[&str]) -> Outcome {
    for text in texts {
        producer.send_non_blocking(*text).await?.await?;
    }
    Ok(())
}

/// The next message, unacknowledged.
pub async fn next(consumer: &mut Strings) -> Outcome<Message<String>> {
    let next = timeout(RECEIVE_TIMEOUT, consumer.try_next()).await.map_err(|_| "no message came")?;
    Ok(next?.ok_or("the consumer ended")?)
}

/// The texts of the next messages, which are acknowledged.
pub async fn receive(consumer: &mut Strings, count: usize) -> Outcome<Vec<String>> {
    let mut texts = Vec::new();
    while texts.len() < count {
        let message = next(consumer).await?;
        texts.push(message.deserialize()?);
        consumer.ack(&message).await?;
    }
    Ok(texts)
}

pub async fn nothing(consumer: &mut Strings) -> Outcome {
    match timeout(SILENCE, consumer.try_next()).await {
        Err(_) => Ok(()),
        Ok(message) => Err(format!("a message came that should not: {:?}", message?.map(|m| m.deserialize())).into()),
    }
}
