# infersdk serve on a processor, with the models and the configuration in /models.
#
#     docker build -t infersdk .
#     docker run -p 8000:8000 -p 8001:8001 --cpus 2 -v "$PWD/models:/models:ro" infersdk
#
# Clients in other containers share POSIX memory with a container that runs with `--ipc=shareable`; they run with
# `--ipc=container:NAME`.

# This image has a C compiler, the next one has none.
FROM python:3.13-slim-trixie AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# Without bytecode, tests, symbols and ONNX Runtime's second copy for C, the packages take 144 MB and not 245 MB. What edits
# graphs (the packages onnx and onnx-ir) takes 33 MB more: `infersdk[onnxruntime]` has it.
RUN python3 -m venv /opt/infersdk \
    && /opt/infersdk/bin/pip install --no-cache-dir --no-compile ".[jpeg,serve]" "onnxruntime>=1.23" \
    && /opt/infersdk/bin/pip uninstall --yes pip \
    && find /opt/infersdk \( -name tests -o -name __pycache__ \) -type d -prune -exec rm -r {} + \
    && find /opt/infersdk -name 'libonnxruntime.so.*' -delete \
    && find /opt/infersdk -name '*.so*' -type f -exec strip --strip-unneeded {} +

FROM python:3.13-slim-trixie
COPY --from=build /opt/infersdk /opt/infersdk
RUN useradd --uid 10001 --create-home server
USER 10001
ENV PATH=/opt/infersdk/bin:$PATH
WORKDIR /models
EXPOSE 8000 8001
HEALTHCHECK --interval=10s --timeout=3s --start-period=2m \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/ready')"]
# As process 1 it gets SIGTERM, and ends when its requests have ended.
ENTRYPOINT ["infersdk", "serve"]
CMD ["/models/app.toml", "--host", "0.0.0.0"]
