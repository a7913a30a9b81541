# syntax=docker/dockerfile:1

FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /build

# Only dependencies: this layer is rebuilt only when a manifest or the lock file changes, not with every source file.
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
COPY actors/Cargo.toml actors/
COPY benches/Cargo.toml benches/
COPY core/Cargo.toml core/
COPY migrations/Cargo.toml migrations/
COPY sim/Cargo.toml sim/
COPY testkit/Cargo.toml testkit/
RUN for package in . actors core migrations sim testkit; do mkdir -p "$package/src" && touch "$package/src/lib.rs"; done \
    && for package in . benches; do mkdir -p "$package/src" && echo 'fn main() {}' > "$package/src/main.rs"; done \
    && cargo build --profile dist --locked --package guildhall --no-default-features --features otel

COPY . .
# The empty sources above are newer than the real ones, and cargo compares modification times.
RUN find . -name '*.rs' -not -path './target/*' -exec touch {} + \
    && cargo build --profile dist --locked --package guildhall --no-default-features --features otel

FROM debian:bookworm-slim
RUN groupadd --system --gid 10001 guildhall \
    && useradd --system --uid 10001 --gid guildhall --home-dir /guildhall --create-home guildhall
COPY --from=build /build/target/dist/guildhall /usr/local/bin/guildhall
USER 10001:10001
WORKDIR /guildhall

# A loopback address inside a container cannot be reached from outside. On any other address the API needs a key: set
# GUILDHALL__API__ADMIN_KEY or GUILDHALL__API__ADMIN_KEY_FILE. Health and metrics need no key: publish the port only where
# everyone who can reach it may read them.
# The API uses plain HTTP here. Publish the port on this machine only, or put a proxy that terminates TLS in front of it; or
# mount a certificate, set GUILDHALL__API__TLS__CERT_FILE and GUILDHALL__API__TLS__KEY_FILE, and set
# GUILDHALL__API__ALLOW_PLAINTEXT to false.
ENV GUILDHALL__API__BIND=0.0.0.0:8080 \
    GUILDHALL__API__ALLOW_PLAINTEXT=true \
    GUILDHALL__LOG__FORMAT=json
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["guildhall", "healthcheck"]
ENTRYPOINT ["guildhall"]
CMD ["serve"]
