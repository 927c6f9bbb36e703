# acmserve on NVIDIA GPUs, on top of vLLM's own image. From the root of a checkout:
#   docker build --file deploy/gpu.Dockerfile --tag acmserve:gpu .
# An image without a compiler gets acmserve without its C++ extension, which only kernels on a CPU need.
FROM vllm/vllm-openai:v0.32.0
COPY . /src
RUN python3 -m pip install --no-cache-dir /src && rm -rf /src \
    && useradd --uid 10001 --create-home --home-dir /data acmserve
ENV XDG_CACHE_HOME=/data/cache HF_HOME=/data/huggingface
COPY deploy/vllm.sh /usr/local/bin/vllm
USER acmserve
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["acmserve", "serve"]
# The last three words belong to the model: another one has another parser of tool calls.
CMD ["Qwen/Qwen3-8B", "--host", "0.0.0.0", "--data-dir", "/data/sessions", \
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
