# Runs the two commands of the README: docker build -t privdd . && docker run privdd
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home privdd && install -d -o privdd -g privdd /privdd
WORKDIR /privdd
USER privdd
COPY --chown=privdd:privdd . .
RUN make .venv/.runtime
ENTRYPOINT ["make"]
CMD ["audit"]
