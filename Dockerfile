# syntax=docker/dockerfile:1
# The agent as an image: three static programs and certificate authorities, and nothing else, not even a shell.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --tag vscaled .
#
# scripts/image makes the same image without docker; both build the programs with scripts/programs.
# The build runs on the builder's own architecture and compiles for the one that TARGETARCH names.

ARG RUST_VERSION=1.95

FROM --platform=$BUILDPLATFORM rust:${RUST_VERSION}-slim-bookworm AS build
ARG BUILDARCH
ARG TARGETARCH
WORKDIR /src

# A C compiler links, and builds ring and, with make, jemalloc; the image has the builder's own.
RUN set -eu; \
    case "$BUILDARCH:$TARGETARCH" in \
        amd64:amd64 | arm64:arm64) cross='' ;; \
        amd64:arm64) cross='gcc-aarch64-linux-gnu libc6-dev-arm64-cross' ;; \
        arm64:amd64) cross='gcc-x86-64-linux-gnu libc6-dev-amd64-cross' ;; \
        *) echo "cannot build for $TARGETARCH on $BUILDARCH" >&2; exit 1 ;; \
    esac; \
    apt-get update; \
    apt-get install --yes --no-install-recommends ca-certificates make $cross; \
    rm -rf /var/lib/apt/lists/*

COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,id=vscaled-target-${TARGETARCH},target=/src/target \
    scripts/programs "$TARGETARCH" /out

FROM scratch
LABEL org.opencontainers.image.title="vscaled" \
      org.opencontainers.image.description="Resizes running containers in place, following VerticalPodAutoscaler recommendations" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/ /usr/local/bin/
# With these the agent checks receivers (https://), unless the configuration names others.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY LICENSE /
# Root, because cgroup files and the runtime's socket belong to root.
USER 0:0
ENV PATH=/usr/local/bin
ENTRYPOINT ["/usr/local/bin/vscaled"]
