# syntax=docker/dockerfile:1.7
# Two images: `docker build --target cpu .` and `docker build --target cuda .`. See docs/deployment.md.
ARG DEBIAN=debian:bookworm-slim
ARG CUDA=nvidia/cuda:13.0.1-devel-ubuntu22.04

# What both consist of. Debian's own Python gets Debian's fixes. nvidia/cuda-base would add nothing: the CUDA runtime is
# inside of the extension, torch brings its libraries, and the driver comes from the host.
FROM ${DEBIAN} AS base
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv tini \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 lumigrad \
 && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin lumigrad \
 && install -d -o 10001 -g 10001 -m 0700 /var/lib/lumigrad/spool \
 && python3 -m venv /opt/lumigrad
ENV PATH=/opt/lumigrad/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
# Calls, and metrics and health over HTTP. What is written: /tmp, and the spool if --spool names it.
EXPOSE 50051 9464
# As process 1 tini passes signals on, and takes leave of processes that others leave behind.
ENTRYPOINT ["tini", "--", "lumigrad", "serve"]
# With TLS: LUMIGRAD_TLS=/path/of/the/authority.pem, and a certificate that names localhost.
HEALTHCHECK --interval=30s --timeout=10s --start-period=180s --retries=3 CMD ["lumigrad", "health"]

# Sources and what builds them; not in the images.
FROM base AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ python3-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY deploy/locks/build.txt deploy/locks/build.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes -r deploy/locks/build.txt
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY cmake cmake
COPY protos protos
COPY kernels kernels
COPY server server
COPY client client
COPY deploy/ray deploy/ray
# Of the commit: the same sources make the same bytes. `make image-cpu` sets it.
ARG SOURCE_DATE_EPOCH=0

FROM build AS wheel-cpu
RUN SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH}" \
    pip wheel --no-build-isolation --no-deps --wheel-dir /wheels --config-settings=cmake.define.LUMIGRAD_CUDA=OFF .

# hadolint ignore=DL3006
FROM ${CUDA} AS toolkit

FROM build AS wheel-cuda
# nvcc runs wherever glibc does, and uses Debian's g++ 12.
COPY --from=toolkit /usr/local/cuda /usr/local/cuda
RUN SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH}" PATH="/usr/local/cuda/bin:${PATH}" \
    pip wheel --no-build-isolation --no-deps --wheel-dir /wheels --config-settings=cmake.define.LUMIGRAD_CUDA=ON --config-settings=cmake.define.LUMIGRAD_CUDA_ARCHITECTURES=RELEASE .

# The packages are a layer of their own, which changes with the lock only.
FROM base AS cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY deploy/locks/cpu.txt /opt/lumigrad/lock.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes --extra-index-url "${TORCH_INDEX}" -r /opt/lumigrad/lock.txt
RUN --mount=type=bind,from=wheel-cpu,source=/wheels,target=/wheels \
    pip install --no-deps --no-index /wheels/*.whl
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Lumigrad" \
      org.opencontainers.image.description="Differentiable rendering and distances over gRPC, on the CPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001

FROM base AS cuda
# GPUs newer than the kernels' binary code compile it anew, which takes minutes: a volume keeps what they compiled.
RUN install -d -o 10001 -g 10001 -m 0700 /var/cache/cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    CUDA_CACHE_PATH=/var/cache/cuda \
    CUDA_CACHE_MAXSIZE=1073741824
COPY deploy/locks/cuda.txt /opt/lumigrad/lock.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes -r /opt/lumigrad/lock.txt
RUN --mount=type=bind,from=wheel-cuda,source=/wheels,target=/wheels \
    pip install --no-deps --no-index /wheels/*.whl
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Lumigrad" \
      org.opencontainers.image.description="Differentiable rendering and distances over gRPC, on NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
