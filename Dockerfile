# One image for operator, webhook and agent. The build context is what `cargo xtask image --context` lays out in target/oci/context:
#
#   bin/     the four binaries, built from this checkout
#   rootfs/  the files of the system they need (glibc's loader and libraries, CA certificates, passwd) and /licenses
#
# So there is no network in the build, no shell and no package manager in the image, and any builder makes the same image of it:
#
#   cargo xtask image                                                              with buildah, without a daemon
#   cargo xtask image --context && docker build -f Dockerfile target/oci/context with Docker
FROM scratch

ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tailnet-operator" \
      org.opencontainers.image.description="Connections between Kubernetes and a Headscale tailnet: operator, admission webhook and agent" \
      org.opencontainers.image.source="https://github.com/tsunaro/tailnet-operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

COPY rootfs/ /
COPY bin/ /

ENV PATH=/ \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER 65532:65532
WORKDIR /
CMD ["/tailnet-operator"]
