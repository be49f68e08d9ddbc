package ociorigin

import (
	"strings"
	"testing"
)

func TestSources(t *testing.T) {
	const digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for source, want := range map[string]struct{ at, url string }{
		"oci://ghcr.io/org/model:v1":                                   {"oci://ghcr.io/org/model:v1", "https://ghcr.io"},
		"oci://docker.io/org/model":                                    {"oci://docker.io/org/model:latest", "https://index.docker.io"},
		"oci://localhost:5000/model:v1@" + digest:                      {"oci://localhost:5000/model@" + digest, "http://localhost:5000"},
		"oci://127.0.0.1:5000/a/b/c@" + digest:                         {"oci://127.0.0.1:5000/a/b/c@" + digest, "http://127.0.0.1:5000"},
		"oci://10.0.0.1:5000/a:b?platform=linux/arm64/v8":              {"oci://10.0.0.1:5000/a:b?platform=linux/arm64/v8", "https://10.0.0.1:5000"},
		"oci://ghcr.io/org/model:v1?endpoint=https://m:1&platform=a/b": {"oci://ghcr.io/org/model:v1?platform=a/b&endpoint=https://m:1", "https://m:1"},
		"oci://ghcr.io/org/model:v1?endpoint=http://mirror/":           {"oci://ghcr.io/org/model:v1?endpoint=http://mirror", "http://mirror"},
	} {
		s, err := Parse(source)
		if err != nil || s.at("") != want.at || s.server.url() != want.url {
			t.Errorf("%s: %q at %q, %v", source, s.at(""), s.server.url(), err)
		}
		if again, err := Parse(s.at(digest)); err != nil || again.at("") != s.at(digest) {
			t.Errorf("%s: pinned it is %q, and then %q, %v", source, s.at(digest), again.at(""), err)
		}
	}
	for source, says := range map[string]string{
		"oci://":                                         "want oci://REGISTRY/REPO:TAG",
		"oci://model:v1":                                 "want oci://REGISTRY/REPO:TAG",
		"oci://org/model:v1":                             "a name with a point",
		"oci://ghcr.io/org/Model:v1":                     "repository",
		"oci://ghcr.io/../model:v1":                      "repository",
		"oci://ghcr.io/org/model:v1#x":                   "has no meaning",
		"oci://user:secret@ghcr.io/org/m:v1":             "docker login",
		"oci://ghcr.io/org/m@sha512:00":                  "docker login",
		"oci://ghcr.io/org/m@sha256:00":                  "a tag or a digest",
		"oci://ghcr.io/m:v1?token=secret":                "there are anonymous, endpoint and platform",
		"oci://ghcr.io/m:v1?endpoint=ftp://x":            "want https://HOST",
		"oci://ghcr.io/m:v1?endpoint=https://u:secret@h": "want https://HOST",
		"oci://ghcr.io/m:v1?platform=linux":              "want OS/ARCHITECTURE",
		"oci://ghcr.io/m:v1?anonymous=maybe":             "want true or false",
		"oci://ghcr.io/m:v1?platform=a/b&platform=a/c":   "given twice",
	} {
		if _, err := Parse(source); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", source, err, says)
		}
	}
}

// TestLoginsStayPrivate sends no login over http to another machine.
func TestLoginsStayPrivate(t *testing.T) {
	for source, exposed := range map[string]bool{
		"oci://ghcr.io/m:v1": false, "oci://localhost:1/m:v1": false, "oci://ghcr.io/m:v1?endpoint=http://10.0.0.1": true, "oci://ghcr.io/m:v1?endpoint=http://[::1]:1": false,
	} {
		s, err := Parse(source)
		if err != nil || s.server.exposed() != exposed {
			t.Errorf("%s: %v, %v", source, s.server.exposed(), err)
		}
	}
}

// TestVersions reads back the versions of files, and refuses others.
func TestVersions(t *testing.T) {
	const digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	o := &Artifact{}
	for _, p := range []part{{digest, 0, 5, 5}, {digest, 512, 10, 2048}, {digest, 0, 0, 7}, {digest, 7, 0, 7}} {
		if got, err := partOf(object(o, p.version(), p.size)); err != nil || got != p {
			t.Errorf("%+v is %q, and then %+v, %v", p, p.version(), got, err)
		}
	}
	for _, version := range []string{"", "x", digest + " 1/2", memberVersion + digest, memberVersion + digest + " 1/", memberVersion + digest + " -1/100", memberVersion + digest + " 95/99", memberVersion + digest + " 9223372036854775807/9223372036854775807"} {
		if p, err := partOf(object(o, version, 5)); err == nil {
			t.Errorf("%q: %+v", version, p)
		}
	}
}
