"""What docs/clients.md says of redis-py: its token in the connection's name, and what it sees."""
import sys

import redis

port = int(sys.argv[1])


def holder(token):
    return redis.Redis(port=port, client_name=f"orders,fencing-token={token}", decode_responses=True)


old, new = holder(33), holder(34)
assert old.set("orders:1", "a") and new.set("orders:1", "b")
try:
    old.set("orders:1", "late")
    raise SystemExit("a stale write went through")
except redis.ResponseError as error:
    assert str(error).startswith("FENCED stale token 33 < 34"), error

replies = old.pipeline(transaction=False).set("orders:2", "x").set("orders:1", "late").get("orders:2").execute(
    raise_on_error=False
)
assert replies[0] is True and isinstance(replies[1], redis.ResponseError) and replies[2] == "x", replies
try:
    old.pipeline(transaction=True).set("orders:2", "y").set("orders:1", "late").execute()
    raise SystemExit("a stale transaction went through")
except redis.ResponseError as error:
    assert "FENCED" in str(error), error
assert new.get("orders:1") == "b" and new.get("orders:2") == "x"



def change(pipe):
    pipe.multi()
    pipe.set("orders:3", "t")


assert new.transaction(change, "orders:3") == [True]
assert new.rpush("orders:4", "a", "b") == 2 and new.blpop("orders:4", timeout=1) == ("orders:4", "a")
script = new.register_script("return redis.call('set', KEYS[1], ARGV[1])")
assert script(keys=["orders:5"], args=["s"]) == "OK"

messages = new.pubsub(ignore_subscribe_messages=True)
messages.subscribe("news")
while not new.publish("news", "hi"):
    pass
message = None
while message is None:
    message = messages.get_message(timeout=5)
assert message["data"] == "hi", message
print("fine")
