# softhull with everything that `softhull verify`, `uncertainty`, `check`, `run` and `report` need, on the CPU.
#   docker build -t softhull .
#   docker run --rm -v "$PWD:/work" softhull verify MODEL.onnx --data images.npz --eps 0.016 --clip 0 1
FROM python:3.12-slim

WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
# The CPU build of torch: the default one brings several gigabytes of CUDA.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
        --constraint constraints.txt '.[cli,onnx,lp,check,vnnlib,plot]' \
    && useradd --create-home softhull

USER softhull
WORKDIR /work
ENTRYPOINT ["softhull"]
CMD ["--help"]
