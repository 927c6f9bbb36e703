#!/bin/sh
# In the images this is `vllm`. `vllm serve` is `acmserve serve`, so that charts which start vLLM start acmserve.
# A folder for metrics of several processes would hide the gauges of sessions. The server has one API process.
if [ "$1" = serve ]; then
    shift
    unset PROMETHEUS_MULTIPROC_DIR
    exec acmserve serve "$@"
fi
exec python3 -m vllm.entrypoints.cli.main "$@"
