package s3origin

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]struct {
		env    map[string]string
		source Source
		named  string
	}{
		"s3://b": {nil, Source{Bucket: "b", Endpoint: "s3.amazonaws.com", Secure: true}, "s3://b/"},
		"s3://b/pile/en/": {
			map[string]string{"AWS_DEFAULT_REGION": "eu-central-1"},
			Source{Bucket: "b", Prefix: "pile/en/", Endpoint: "s3.amazonaws.com", Secure: true, Region: "eu-central-1", dir: "pile/en/"},
			"s3://b/pile/en",
		},
		"s3://b/one?endpoint=http://127.0.0.1:9000&region=us-east-1&profile=p&anonymous": {
			map[string]string{"AWS_ENDPOINT_URL": "https://elsewhere", "AWS_REGION": "eu-central-1"},
			Source{Bucket: "b", Prefix: "one", Endpoint: "127.0.0.1:9000", Region: "us-east-1", PathStyle: true, Anonymous: true, Profile: "p", dir: "one/"},
			"s3://b/one?endpoint=http://127.0.0.1:9000",
		},
		"s3://b/with%20space?path_style=false": {
			map[string]string{"AWS_ENDPOINT_URL": "https://all", "AWS_ENDPOINT_URL_S3": "https://s3.host"},
			Source{Bucket: "b", Prefix: "with space", Endpoint: "s3.host", Secure: true, dir: "with space/"},
			"s3://b/with space?endpoint=https://s3.host",
		},
		"s3://b/x?endpoint=http://c0:1,http://c1:1&origin=https://s3.host": {
			nil, Source{Bucket: "b", Prefix: "x", Endpoint: "s3.host", Secure: true, PathStyle: true, Caches: "http://c0:1,http://c1:1", dir: "x/"},
			"s3://b/x?endpoint=https://s3.host",
		},
		"s3://b/x?endpoint=http://c0:1&origin=aws": {
			nil, Source{Bucket: "b", Prefix: "x", Endpoint: "s3.amazonaws.com", Secure: true, Caches: "http://c0:1", dir: "x/"}, "s3://b/x",
		},
		"s3://b/x?path_style=&endpoint=HTTP://h/": {nil, Source{Bucket: "b", Prefix: "x", Endpoint: "h", PathStyle: true, dir: "x/"}, "s3://b/x?endpoint=http://h"},
		"s3://b/x?path_style&anonymous=":          {nil, Source{Bucket: "b", Prefix: "x", Endpoint: "s3.amazonaws.com", Secure: true, Anonymous: true, dir: "x/"}, "s3://b/x"},
	} {
		t.Run(text, func(t *testing.T) {
			for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
				t.Setenv(name, want.env[name])
			}
			got, err := Parse(text)
			if err != nil || got != want.source || got.String() != want.named {
				t.Errorf("%+v, %v, named %s; want %+v, named %s", got, err, got, want.source, want.named)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"s3://":                                      "want s3://BUCKET/PREFIX",
		"http://b/x":                                 "want s3://BUCKET/PREFIX",
		"s3://key:secret@b/x":                        "credentials do not belong",
		"s3://b?endpoint=127.0.0.1":                  "or http://HOST:PORT, and nothing more",
		"s3://b?endpoint=ftp://host":                 "or http://HOST:PORT, and nothing more",
		"s3://b?anonymous=perhaps":                   "want true or false",
		"s3://b?path_style=virtual":                  "want true or false",
		"s3://b?acces_key=AKIA&x=y":                  "unknown option",
		"s3://b\x7f":                                 "it cannot be read",
		"s3://key:secret@b\x7f":                      "it cannot be read",
		"s3://key:a/secret@b":                        "it cannot be read",
		"s3://b?region=&x=secret":                    "region has no value",
		"s3://b?endpoint=http://k:secret@h&origin=":  "origin has no value",
		"s3://b?endpoint=http://h;region=r":          "options cannot be read",
		"s3://b?endpoint=":                           "endpoint has no value",
		"s3://b?endpoint=http://h,http://i":          "name the server behind them",
		"s3://b?origin=http://h":                     "stands behind caches",
		"s3://b?region=":                             "region has no value",
		"s3://b?endpoint=http://h&endpoint=http://i": "endpoint is given twice",
		"s3://b/p#x?endpoint=http://h":               "%23",
		"s3://b?endpoint=http://h/minio":             "or http://HOST:PORT, and nothing more",
		"s3://b?endpoint=http://key:secret@h":        "or http://HOST:PORT, and nothing more",
		"s3://b?endpoint=http://h%23x":               "or http://HOST:PORT, and nothing more",
		"s3://b?endpoint=http://h%3Fx=y":             "or http://HOST:PORT, and nothing more",
		"s3://b?endpoint=http://%zz/x":               "options cannot be read",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows a secret: %v", err)
		}
	}
}
