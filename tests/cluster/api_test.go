package cluster_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// client asks the API server, which made its certificate itself, and pods.
var client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// statusError is an answer of the API server that is no success.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return fmt.Sprintf("%d: %s", e.code, e.text) }

// api asks the API server as an administrator. body and to may be nil.
func (c *cluster) api(method, path string, body, to any) error {
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(text)
	}
	r, err := http.NewRequest(method, apiServer+path, in)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer admin")
	r.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // read to its end
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode >= 300 {
		return &statusError{answer.StatusCode, string(text)}
	}
	if to == nil {
		return nil
	}
	return json.Unmarshal(text, to)
}

// tool runs kubectl or helm as an administrator does.
func (c *cluster) tool(t testing.TB, input string, args ...string) string {
	t.Helper()
	if args[0] == "kubectl" {
		args = append([]string{c.program("kubernetes")}, args...)
	} else {
		args = append([]string{c.program(args[0])}, args[1:]...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.at("admin.conf"), "HOME="+c.work)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args[1:], " "), err, out)
	}
	return string(out)
}

// apply makes objects, as users do.
func (c *cluster) apply(t testing.TB, yaml string) {
	t.Helper()
	c.tool(t, yaml, "kubectl", "apply", "-f", "-")
}

// await waits for something, or fails the test.
func (c *cluster) await(t testing.TB, what string, try func() error) {
	t.Helper()
	must(t, c.until(what, try))
}
