# docker build -t citadel . && docker run -v "$PWD/idx:/data/index" -p 127.0.0.1:8080:8080 citadel
FROM python:3.12-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN python -m pip wheel --no-cache-dir --wheel-dir /wheels ".[server]"

FROM python:3.12-slim-bookworm
# Only the wheels of the first stage are installed, so there is nothing to pin.
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "citadel-ir[server]" \
    && useradd --uid 10001 --no-create-home citadel
USER 10001
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health/ready', timeout=2)"]
ENTRYPOINT ["citadel"]
CMD ["serve", "/data/index", "--host", "0.0.0.0"]
