#!/bin/sh
# Ask a gateway in three APIs. Ends with an error when one of them is not answered.
set -eu
url=${VELOX_URL:-http://127.0.0.1:8080}
key=${VELOX_KEY:-unused}
model=${MODEL:-gpt-4o-mini}

ask() {
  curl --silent --show-error --fail-with-body --no-buffer "$url$1" \
    --header "Authorization: Bearer $key" --header "Content-Type: application/json" --data "$2"
  echo
}

echo "== Chat Completions"
ask /v1/chat/completions "{\"model\": \"$model\", \"messages\": [{\"role\": \"user\", \"content\": \"Say hello.\"}]}"
echo "== Chat Completions, as a stream"
ask /v1/chat/completions "{\"model\": \"$model\", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"Say hello.\"}]}"
echo "== Responses"
ask /v1/responses "{\"model\": \"$model\", \"input\": \"Say hello.\"}"
echo "== Messages"
ask /v1/messages "{\"model\": \"$model\", \"max_tokens\": 100, \"messages\": [{\"role\": \"user\", \"content\": \"Say hello.\"}]}"
