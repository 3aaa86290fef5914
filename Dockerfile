# walrelay in an image: the binary and the system's certificates over a slim Debian, as a user without rights.
#
#   docker build -t walrelay .
#   docker run --read-only -v ./walrelay.toml:/etc/walrelay/walrelay.toml:ro walrelay
#
# Base images are arguments, so that a mirror or a pinned digest can take their place.
ARG BUILD_IMAGE=rust:1.95-slim-bookworm
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin walrelay && strip target/release/walrelay

FROM ${BASE_IMAGE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf /var/log/*.log /var/log/apt
COPY --from=build /src/target/release/walrelay /usr/bin/walrelay
# By number, so that Kubernetes can tell that it is not root.
USER 65532:65532
# Health and metrics; mind who can reach it.
ENV WALRELAY_ADMIN_LISTEN=0.0.0.0:10187
EXPOSE 10187
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["walrelay", "health"]
ENTRYPOINT ["walrelay"]
CMD ["run"]
