# densecal on a CPU, with training and export, in the versions of constraints.txt.
#   docker build -t densecal .
#   docker run --rm -v "$PWD:/data" densecal evaluate maps masks --json scores.json
FROM python:3.12-slim
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# PyTorch's own index has builds without CUDA, which are 5 GB smaller; pip prefers them (+cpu) to the same version on PyPI
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt '.[train,export]'
RUN useradd --create-home densecal
USER densecal
WORKDIR /data
ENTRYPOINT ["densecal"]
CMD ["--help"]
