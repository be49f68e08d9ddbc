package lies_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/lies/liar"
)

// TestNobodyIsThere mounts what is no server, or none that can be talked to. The command fails at once and says why.
func TestNobodyIsThere(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel()
	plain := liar.HTTP(t, map[string][]byte{"shard": {1}}, nil, nil)
	authority := strings.TrimPrefix(plain.URL, "http://")
	nobody := freePort(t)
	secure := httptest.NewUnstartedServer(plain)
	secure.Config.ErrorLog = plain.Config.ErrorLog
	secure.StartTLS()
	t.Cleanup(secure.Close)
	encrypted := strings.TrimPrefix(secure.URL, "https://")
	for source, want := range map[string]string{
		"http://" + nobody + "/":                       "connection refused",
		"http://no-such-host.invalid/":                 "no-such-host.invalid",
		"https://" + authority + "/":                   "HTTP response to HTTPS client",
		"s3://bucket?endpoint=http://" + nobody:        "connection refused",
		"s3://bucket?endpoint=https://" + authority:    "HTTP response to HTTPS client",
		secure.URL + "/":                               "certificate",
		"s3://bucket?endpoint=" + secure.URL:           "certificate",
		"http://" + encrypted + "/":                    "400",
		"s3://bucket?endpoint=http://" + encrypted:     "400",
		"s3://bucket/one?endpoint=http://" + encrypted: "400",
		"s3://ab?endpoint=http://" + nobody:            "shorter than 3 characters",
		"s3://bucket?endpoint=http://x.invalid":        "x.invalid",
		"http://127.0.0.1:99999/":                      "invalid port",
	} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience) // one that tried again would go on for far longer
			defer cancel()
			_, err := suite.Mount(ctx, source, suite.NewDir(t), "--patience", "1h", "--log-file", filepath.Join(suite.NewDir(t), "log"))
			if err == nil || !strings.Contains(err.Error(), want) || ctx.Err() != nil {
				t.Errorf("%v, want %q at once", err, want)
			}
		})
	}
}

// freePort gives an address where nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { must(t, l.Close()) }()
	return l.Addr().String()
}

// TestMountSaysWhyItWaits has a server that is not well for a while. The command says so, on the terminal and in the log,
// and mounts when the server is well.
func TestMountSaysWhyItWaits(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel()
	for name, c := range map[string]struct {
		tell func(x *liar.Exchange)
		want string
	}{
		"it fails":      {func(x *liar.Exchange) { x.Text(http.StatusServiceUnavailable, "") }, "trying again, because the server answers 503"},
		"it is silent":  {func(x *liar.Exchange) { <-x.R.Context().Done() }, "waiting, because the server has not answered yet"},
		"it hangs up":   {func(*liar.Exchange) { panic(http.ErrAbortHandler) }, "trying again, because the server hung up"},
		"it is no HTTP": {func(x *liar.Exchange) { x.Wire("\x00") }, "trying again, because"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := liar.HTTP(t, map[string][]byte{"shard": origintest.Data(1000, 1)}, nil, func(x *liar.Exchange) bool { c.tell(x); return true })
			point, log := suite.NewDir(t), filepath.Join(suite.NewDir(t), "log")
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			cmd := suite.Command(ctx, "mount", "--log-file", log, "--patience", "1h", l.Source(), point)
			said, err := cmd.StderrPipe()
			must(t, err)
			must(t, cmd.Start())
			line, err := bufio.NewReader(said).ReadString('\n')
			if err != nil || !strings.Contains(line, c.want) {
				t.Errorf("it says %q, %v; want %q", line, err, c.want)
			}
			l.Honest.Store(true)
			l.CloseClientConnections() // of what is silent
			must(t, cmd.Wait())
			m := suite.At(point)
			defer func() { must(t, m.Close()) }()
			if text, err := os.ReadFile(log); err != nil || !bytes.Contains(text, []byte("level=WARN msg=\""+strings.Fields(c.want)[0])) {
				t.Errorf("the log has no line about it: %v\n%s", err, text)
			}
		})
	}
}

// TestMountWaitsForAServer starts a server after the mount. A line of /etc/fstab waits for it, and a command that is told to.
func TestMountWaitsForAServer(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel()
	helper := filepath.Join(suite.NewDir(t), "mount.fuse.hbmfs")
	must(t, os.Symlink(suite.Path(), helper))
	for name, args := range map[string][]string{
		"by --wait": {suite.Path(), "mount", "--wait", "1m", "SOURCE", "POINT", "--log-file", "LOG"},
		"by fstab":  {helper, "SOURCE", "POINT", "-o", "ro,_netdev,log_file=LOG"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, point, log := freePort(t), suite.NewDir(t), filepath.Join(suite.NewDir(t), "log")
			fill := strings.NewReplacer("SOURCE", "http://"+address+"/"+liar.Bucket+"/", "POINT", point, "LOG", log)
			for i := range args {
				args[i] = fill.Replace(args[i])
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, args[0], args[1:]...)
			said, err := cmd.StderrPipe()
			must(t, err)
			must(t, cmd.Start())
			if line, err := bufio.NewReader(said).ReadString('\n'); err != nil || !strings.Contains(line, "connection refused") {
				t.Errorf("it says %q, %v", line, err)
			}
			l := liar.HTTP(t, map[string][]byte{"shard": {1}}, nil, nil)
			listener, err := net.Listen("tcp", address)
			must(t, err)
			server := &http.Server{Handler: l}
			served := make(chan error, 1)
			go func() { served <- server.Serve(listener) }()
			must(t, cmd.Wait())
			must(t, suite.At(point).Close())
			must(t, server.Close())
			if err := <-served; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		})
	}
}
