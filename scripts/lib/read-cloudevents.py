"""Reads messages by the CloudEvents SDK and compares them with what they stand for; see scripts/test-cloudevents."""

import json
import sys

from cloudevents.core.bindings import amqp, rabbitmq
from cloudevents.core.formats.json import JSONFormat


def read(message):
    """The message as the SDK's event: by the AMQP binding, or by RabbitMQ's where the prefix is that one's."""
    body = bytes(message["body"])
    if message["prefix"] == "ce-":
        parts = rabbitmq.RabbitMQMessage(message["headers"], message["content_type"], body)
        return rabbitmq.from_rabbitmq(parts, JSONFormat())
    properties = {"content-type": message["content_type"]}
    return amqp.from_amqp(amqp.AMQPMessage(properties, message["headers"], body), JSONFormat())


def main(path):
    count = 0
    with open(path, encoding="utf-8") as lines:
        for count, line in enumerate(lines, 1):
            message = json.loads(line)
            event = read(message)
            attributes = dict(event.get_attributes())
            attributes["time"] = attributes["time"].isoformat(timespec="microseconds")
            assert attributes == message["attributes"], f"line {count}: {attributes}"
            data = message["data"]
            if isinstance(data, dict) and "hex" in data:
                data = bytes.fromhex(data["hex"])
            assert event.get_data() == data, f"line {count}: {event.get_data()!r}"
    assert count, "no messages"
    print(f"the SDK reads {count} messages as they were meant")


main(sys.argv[1])
