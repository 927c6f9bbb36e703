# acmserve on CPUs, with the packages that requirements/cpu.lock pins. From the root of a checkout:
#   docker build --file deploy/cpu.Dockerfile --tag acmserve:cpu .
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ libnuma1 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements/ requirements/
RUN requirements/install.sh packages /opt/acmserve
COPY . .
RUN /opt/acmserve/bin/pip install --no-deps --no-build-isolation .

FROM python:3.11-slim-bookworm
# The compiler stays: torch compiles one operation when the first answer asks for log-probabilities.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ libnuma1 && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --home-dir /data acmserve
COPY --from=build /opt/acmserve /opt/acmserve
ENV PATH=/opt/acmserve/bin:$PATH XDG_CACHE_HOME=/data/cache HF_HOME=/data/huggingface
COPY deploy/vllm.sh /opt/acmserve/bin/vllm
USER acmserve
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["acmserve", "serve"]
CMD ["smollm2", "--host", "0.0.0.0", "--data-dir", "/data/sessions"]
