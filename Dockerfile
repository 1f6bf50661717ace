# The simulator and its endpoint behind OpenAI's API, without a GPU:
#   docker build -t c2c .
#   docker run -v c2c:/cache -v "$PWD:/data" c2c simulate workload=file workload.path=my.csv
#   docker run -v c2c:/cache -p 8123:8123 c2c serve simulated=true host=0.0.0.0 key=mine
FROM python:3.12-slim
COPY . /src
RUN pip install --no-cache-dir -c /src/.ci/constraints/main.txt "/src[engine]" && rm -r /src
# Compiled code, made on the first run: it is of the machine's CPU, so no part of the image.
ENV C2C_CACHE=/cache
WORKDIR /data
EXPOSE 8123
ENTRYPOINT ["c2c"]
CMD ["--help"]
