# densecal on a CPU, with training and export: the packages of requirements.lock by their hashes, PyTorch by its version.
#   docker build -t densecal .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data" densecal evaluate maps masks --json scores.json
FROM python:3.12-slim
WORKDIR /source
COPY pyproject.toml setup.py constraints.txt requirements.lock README.md LICENSE ./
# PyTorch's own index has builds without CUDA, which are 5 GB smaller
RUN pip install --no-cache-dir --no-deps --index-url https://download.pytorch.org/whl/cpu -c constraints.txt torch torchvision
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements.lock
COPY src src
# the compiler is needed for one file; without it NumPy would do the work
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && pip install --no-cache-dir --no-deps --no-build-isolation . \
    && apt-get purge -y --auto-remove gcc libc6-dev && rm -rf /var/lib/apt/lists/*
# with --user, files that are written belong to whoever runs the container; caches in HOME then work for every user
RUN useradd --create-home --home-dir /densecal densecal && chmod 1777 /densecal
ENV HOME=/densecal
USER densecal
WORKDIR /data
ENTRYPOINT ["densecal"]
CMD ["--help"]
