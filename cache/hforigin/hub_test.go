package hforigin

import (
	"net/http"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/cache/fetch"
)

// refuses answers every request with a refusal, and keeps the headers of the last one.
type refuses struct{ last http.Header }

func (s *refuses) RoundTrip(r *http.Request) (*http.Response, error) {
	s.last = r.Header
	return &http.Response{StatusCode: http.StatusUnauthorized, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// TestTokensStayOffTheWire asks servers by http and https, with a token in the environment.
func TestTokensStayOffTheWire(t *testing.T) {
	t.Setenv("HF_TOKEN", "hf_secret")
	for endpoint, want := range map[string]bool{
		"http://10.0.0.1:80": false, "http://hub": false, "http://localhost:80": true, "http://127.0.0.1": true, "http://[::1]:80": true, "https://hub": true,
	} {
		s, err := Parse("hf://org/name?endpoint=" + endpoint)
		if err != nil {
			t.Fatal(err)
		}
		o, server := Open(s, fetch.Options{}), &refuses{}
		o.client.Transport = server
		if _, err = o.List(t.Context()); err == nil {
			t.Error("a refusal is no error")
		} else if says := strings.Contains(err.Error(), "no token is sent over http://"); says == want {
			t.Errorf("%s: %v", endpoint, err)
		}
		if sent := server.last.Get("Authorization") != ""; sent != want {
			t.Errorf("%s: the token was sent: %v", endpoint, sent)
		}
	}
}

// TestTokensStayOffTheWireToCaches puts caches before the Hub. A cache of plain http is asked by those who have no token.
func TestTokensStayOffTheWireToCaches(t *testing.T) {
	t.Setenv("HF_HOME", t.TempDir())
	for _, c := range []struct{ query, token, cache, says string }{
		{"", "hf_secret", "http://cache:80", "the Hub's token would be readable"},
		{"", "two words", "http://cache:80", "the Hub's token would be readable"}, // it may be mended later
		{"?anonymous=true", "hf_secret", "http://cache:80", ""},
		{"", "", "http://cache:80", ""},
		{"", "hf_secret", "http://localhost:80", ""},
		{"", "hf_secret", "https://cache", ""},
	} {
		t.Setenv("HF_TOKEN", c.token)
		s, err := Parse("hf://org/name" + c.query)
		if err != nil {
			t.Fatal(err)
		}
		o := Open(s, fetch.Options{})
		getter, err := o.Through(c.cache)
		switch {
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%+v: %v", c, err)
		case c.says == "" && err != nil:
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil {
			continue
		}
		t.Setenv("HF_TOKEN", "hf_later")
		server, h := &refuses{}, getter.(*through).hub
		o.client.Transport = server
		res, err := h.do(t.Context(), h.url("api", "x"), "", true) //nolint:bodyclose // Discard closes it
		if err != nil {
			t.Fatal(err)
		}
		fetch.Discard(res)
		want := c.query == "" && c.cache != "http://cache:80"
		if sent := server.last.Get("Authorization") != ""; sent != want {
			t.Errorf("%+v: the token was sent: %v", c, sent)
		}
	}
}
