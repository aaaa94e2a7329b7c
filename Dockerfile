# fencegate in a small image, without the demo.
#
#   docker build -t fencegate:local .
#   docker run --rm -v ./fence.yaml:/etc/fencegate/fencegate.yaml:ro -v marks:/var/lib/fencegate -p 8080:8080 fencegate:local
#
# The marks of `store.path: /var/lib/fencegate/marks` lie in that volume. A listener's `bind` must be "0.0.0.0:8080" to be
# reached from outside of the container.

FROM rust:1.95.0-slim-bookworm AS build
# As .ci/setup: the etcd client is generated from .proto files, which import protobuf's own.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libprotobuf-dev protobuf-compiler \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# Tests and benches are named in Cargo.toml; none of them is built.
COPY Cargo.toml Cargo.lock ./
COPY benches benches
COPY tests tests
COPY src src
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --no-default-features \
    && cp target/release/fencegate /usr/local/bin/fencegate

FROM debian:12.12-slim
# The authorities that vouch for a store with https:// and no ca_file.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
# The number is written out, so that orchestrators can tell that it isn't root.
RUN groupadd --gid 10001 fencegate \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/fencegate --shell /usr/sbin/nologin fencegate \
    && install -d -o fencegate -g fencegate -m 0750 /var/lib/fencegate
COPY --from=build /usr/local/bin/fencegate /usr/local/bin/fencegate
USER 10001:10001
WORKDIR /var/lib/fencegate
# `fencegate serve` waits for what is under way, up to its shutdown_timeout: let `docker stop --time` be longer.
STOPSIGNAL SIGTERM
# Alive, not ready: one that stands by must not be started anew.
HEALTHCHECK --interval=5s --timeout=6s --start-period=5s --retries=3 \
    CMD ["fencegate", "health", "-c", "/etc/fencegate/fencegate.yaml"]
ENTRYPOINT ["fencegate"]
CMD ["serve", "-c", "/etc/fencegate/fencegate.yaml"]
