"""Amazon Bedrock's Converse API, as models speak it; and AWS's event stream frames."""
