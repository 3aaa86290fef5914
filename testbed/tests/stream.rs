//! Streams: what the reader sees over cut connections, and what a killed broker keeps.

#![expect(clippy::unwrap_used, reason = "the helpers of tests may fail as tests do")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Connection};
use walrelay_testbed::{
    QueueOptions, RabbitMq, RabbitMqOptions, Result, StreamReader, TcpProxy, Vhost, eventually,
    shared_rabbitmq,
};

const SOON: Duration = Duration::from_secs(30);

const STREAM: &str = "stream";

/// How many messages are on their way at a time.
const GROUP: u64 = 100;

/// Publishes numbers until the broker is gone; those that it has confirmed.
async fn publish(vhost: Vhost, numbers: std::ops::Range<u64>) -> BTreeSet<u64> {
    let mut confirmed = BTreeSet::new();
    let connection = vhost.connect().await.unwrap();
    let channel = confirming(&connection).await;
    for first in numbers.clone().step_by(GROUP as usize) {
        let group = first..numbers.end.min(first + GROUP);
        if publish_group(&channel, group, &mut confirmed).await.is_err() {
            break;
        }
    }
    confirmed
}

async fn confirming(connection: &Connection) -> Channel {
    let channel = connection.create_channel().await.unwrap();
    let confirms = ConfirmSelectOptions::default();
    channel.confirm_select(confirms).await.unwrap();
    channel
}

async fn publish_group(
    channel: &Channel,
    numbers: std::ops::Range<u64>,
    confirmed: &mut BTreeSet<u64>,
) -> lapin::Result<()> {
    let mut confirms = Vec::new();
    for number in numbers {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let body = number.to_string();
        let publishing =
            channel.basic_publish("".into(), STREAM.into(), options, body.as_bytes(), properties);
        confirms.push((number, publishing.await?));
    }
    for (number, confirm) in confirms {
        if confirm.await?.is_ack() {
            confirmed.insert(number);
        }
    }
    Ok(())
}

/// The offsets and the numbers that were read.
type Messages = Arc<Mutex<Vec<(u64, u64)>>>;

fn read(vhost: &Vhost) -> (Messages, StreamReader) {
    let messages = Messages::default();
    let reading = messages.clone();
    let reader = StreamReader::start(vhost, STREAM, move |stored| {
        let number = std::str::from_utf8(&stored.body).unwrap().parse().unwrap();
        reading.lock().unwrap().push((stored.offset, number));
    });
    (messages, reader)
}

fn count(messages: &Messages) -> usize {
    messages.lock().unwrap().len()
}

/// Cuts the reader's connection so often, each time while it reads.
async fn cut_the_reader_off(cuts: u64) -> Result<()> {
    let vhost = shared_rabbitmq().await?.vhost().await?;
    vhost.declare_queue(QueueOptions::stream(STREAM)).await?;
    let proxy = TcpProxy::start(vhost.port()).await?;
    let (messages, _reader) = read(&vhost.through(proxy.port()));
    let connection = vhost.connect().await?;
    let channel = confirming(&connection).await;
    for cut in 0..cuts {
        let (group, before) = (cut * GROUP..(cut + 1) * GROUP, count(&messages));
        publish_group(&channel, group, &mut BTreeSet::new())
            .await
            .unwrap();
        let is_reading = async || count(&messages) > before && proxy.connections() == 1;
        eventually("the reader to read", SOON, is_reading).await?;
        proxy.cut().await;
    }
    let all = cuts * GROUP;
    eventually("all messages", SOON, async || count(&messages) as u64 >= all).await?;
    let expected: Vec<(u64, u64)> = (0..all).map(|number| (number, number)).collect();
    assert!(*messages.lock().unwrap() == expected, "read otherwise");
    assert!(proxy.reached() >= cuts);
    Ok(())
}

#[tokio::test]
async fn a_reader_that_is_cut_off_again_and_again_brings_every_message_once_and_in_order() -> Result<()> {
    cut_the_reader_off(20).await
}

#[tokio::test]
#[ignore = "takes a minute: the same as a_reader_that_is_cut_off_again_and_again_…, five hundred times over"]
async fn a_reader_that_is_cut_off_five_hundred_times_brings_every_message_once_and_in_order() -> Result<()> {
    cut_the_reader_off(500).await
}

#[tokio::test]
async fn what_a_broker_confirmed_before_it_was_killed_is_in_its_stream() -> Result<()> {
    let mut broker = RabbitMq::start(RabbitMqOptions::default()).await?;
    let vhost = broker.vhost().await?;
    vhost.declare_queue(QueueOptions::stream(STREAM)).await?;
    broker.write_out().await?;
    let (messages, _reader) = read(&vhost);
    let mut confirmed = BTreeSet::new();
    for round in 1..=2 {
        let publishing = tokio::spawn(publish(
            vhost.clone(),
            round * 1_000_000..round * 1_000_000 + 100_000,
        ));
        let before = count(&messages);
        eventually("messages", SOON, async || count(&messages) > before + 2000).await?;
        broker.kill().await?;
        confirmed.extend(publishing.await.unwrap());
        broker.start_again().await?;
        // Before this the broker would route past it.
        let stored = async || {
            let (properties, body) = (BasicProperties::default(), round.to_string());
            let storing = vhost.store(STREAM, properties, body.as_bytes());
            storing.await.is_ok_and(|stored| stored)
        };
        eventually("the stream to take messages again", SOON, stored).await?;
        broker.write_out().await?;
    }
    let is_last = async || messages.lock().unwrap().iter().any(|(_, number)| *number == 2);
    eventually("the last message", SOON, is_last).await?;
    let messages = messages.lock().unwrap();
    let read: BTreeSet<u64> = messages.iter().map(|(_, number)| *number).collect();
    let lost: Vec<&u64> = confirmed.difference(&read).collect();
    assert!(confirmed.len() > 2000 && lost.is_empty(), "{lost:?}");
    Ok(())
}
