# Velox in a container: slim, non-root, tini as process 1, wheels only (no compiler in the image), hashes checked.
#
#     docker build -t velox .
#     docker build -t velox --build-arg BUILD=plain .   # minutes less to build, more CPU a request: docs/deploy.md
#     docker buildx build --platform linux/amd64,linux/arm64 -t velox .
#     docker run -p 8080:8080 -e VELOX_API_KEYS=... -e OPENAI_API_KEY velox
#
# The image listens on 0.0.0.0:8080. It therefore starts only with VELOX_API_KEYS or VELOX_API_KEYS_FILE, or with
# VELOX_AUTH=none, which lets everyone in who can reach it. As a sidecar, set VELOX_LISTEN=127.0.0.1:8080 instead.
# `docker run ... velox check` prints the settings in use and what is wrong with them; `docker exec CONTAINER velox reload`
# lets a running one read its file again.

ARG BASE=python:3.11-slim
ARG BUILD=compiled

# The wheel, plain. The lock of development has the setuptools that makes it, with its hash.
FROM ${BASE} AS plain
WORKDIR /build
COPY requirements-dev.lock ./
RUN awk '/^[a-z]/ { on = /^setuptools==/ } on' requirements-dev.lock > setuptools.lock \
    && pip install --no-cache-dir --require-hashes --only-binary :all: -r setuptools.lock
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY deploy/packages.py deploy/sources.py deploy/
COPY velox velox
COPY velox_migrate velox_migrate
COPY velox_sim velox_sim
RUN python -m deploy.packages /wheel

# The same, with the modules of the usual request compiled. bench has the requests that gcc sees its usual way by.
FROM ${BASE} AS compiled
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
WORKDIR /build
COPY requirements-dev.lock ./
RUN pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements-dev.lock
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY deploy/compile.py deploy/sources.py deploy/
COPY bench bench
COPY velox velox
COPY velox_migrate velox_migrate
COPY velox_sim velox_sim
RUN python -m deploy.compile wheel /wheel

FROM ${BUILD} AS wheel

FROM ${BASE} AS build
COPY requirements.lock /build/requirements.lock
RUN python -m venv --without-pip /opt/velox \
    && pip --python /opt/velox/bin/python install --no-cache-dir --require-hashes --only-binary :all: \
        -r /build/requirements.lock
COPY --from=wheel /wheel /wheel
RUN pip --python /opt/velox/bin/python install --no-cache-dir --no-deps /wheel/*.whl \
    && /opt/velox/bin/python -m compileall -q /opt/velox/lib/python3.11/site-packages

FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    # For VELOX_LISTEN=unix:/run/velox/velox.sock and VELOX_LEDGER=/var/lib/velox: a new volume that is mounted there takes
    # the owner over.
    && install -d -o 10001 -g 10001 -m 0755 /run/velox \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/velox
COPY --from=build /opt/velox /opt/velox
# The port is PORT, which platforms such as Cloud Run set, or 8080.
ENV PATH=/opt/velox/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    VELOX_LISTEN=0.0.0.0
# docker build --build-arg REVISION=$(git rev-parse HEAD) --build-arg CREATED=$(date -u +%Y-%m-%dT%H:%M:%SZ)
ARG VERSION=0.1.0
ARG REVISION=""
ARG CREATED=""
LABEL org.opencontainers.image.title="Velox" \
    org.opencontainers.image.description="An LLM inference gateway between OpenAI-SDK clients and model providers" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version=$VERSION \
    org.opencontainers.image.revision=$REVISION \
    org.opencontainers.image.created=$CREATED
# A number, so that Kubernetes can see that it isn't root. Of the image only these two folders belong to it: a read-only
# root will do.
USER 10001:10001
WORKDIR /
EXPOSE 8080
# Asks the admin listener where the container's variables, and the file of VELOX_CONFIG, say that it is. With
# VELOX_ADMIN_LISTEN=off, and for `velox sim`, run with --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s --retries=3 CMD ["velox", "health"]
# Give it longer than VELOX_DRAIN_TIMEOUT (25 s) to stop: docker stop --time 30, stop_grace_period: 30s.
ENTRYPOINT ["tini", "--", "velox"]
CMD ["serve"]
