package address

import (
	"strings"
	"testing"
)

func TestServers(t *testing.T) {
	for text, want := range map[string]string{
		"https://h": "https://h", "http://h:80/": "http://h:80", "HTTP://h//": "http://h", "https://h/account/": "https://h/account", "http://[::1]:80": "http://[::1]:80", "http://[fe80::1%25eth0]": "http://[fe80::1%25eth0]",
	} {
		if u, err := Server(text); err != nil || u.String() != want {
			t.Errorf("%s: %v, %v", text, u, err)
		}
	}
	for _, text := range []string{"https://h/a", "http://h/a/"} {
		if u, err := Host(text); err == nil {
			t.Errorf("%s: %v has a path", text, u)
		}
	}
}

// TestServersTellNoSecrets, wherever one stands.
func TestServersTellNoSecrets(t *testing.T) {
	for _, text := range []string{
		"http://u:hunter2@h", "//u:hunter2@h", "HTTPS://hunter2@h", "http://u:a@hunter2@h", "http://u:hunter2?b@h", "http://u:hunter2#b@h", "http://u:hunter2/b@h", "http://u:hunter2%40h", "u:hunter2%40h",
		"https://h?sig=hunter2", "https://h/%3Fsig=hunter2", "https://h?a@hunter2", "https://h#hunter2", "ftp://h/sig=hunter2", "AccountName=a;AccountKey=hunter2", "http://u:hunter2\x7f@h",
	} {
		for _, of := range []func(string) error{func(text string) error { _, err := Server(text); return err }, func(text string) error { _, err := Host(text); return err }} {
			if err := of(text); err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
}

func TestShown(t *testing.T) {
	for source, want := range map[string]string{
		"s3://b/x": "s3://b/x", "s3://b/x?region=hunter2": "s3://b/x", "s3://k:hunter2@b": "s3://[...]", "s3://k:a/hunter2@b": "s3://[...]", "s3://k:hunter2?a@b": "s3://[...]", "s3://b?endpoint=http://u:hunter2@h": "s3://[...]", "": "",
	} {
		if got := Shown(source); got != want {
			t.Errorf("%s: %s", source, got)
		}
	}
}

func TestExposed(t *testing.T) {
	for server, want := range map[string]bool{
		"https://h": false, "HTTPS://h": false, "http://h": true, "HTTP://10.0.0.1:80": true, "http://localhost": false, "http://localhost:80/a": false, "HTTP://127.0.0.1": false, "http://127.9.9.9:1": false,
		"http://[::1]": false, "http://[::1]:80": false, "http://[::ffff:127.0.0.1]": false, "http://[::2]": true, "http://[fe80::1]:80": true, "http://127.0.0.1.example.com": true, "http://localhost.example.com": true, "http://127.0.0.1@h": true, "http://%zz": true,
	} {
		if Exposed(server) != want {
			t.Errorf("%s: others can read secrets on their way: %v", server, !want)
		}
	}
}
