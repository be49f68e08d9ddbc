package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/csi/volume"
)

func TestCommandLinesThatAreWrong(t *testing.T) {
	t.Setenv("CSI_ENDPOINT", "")
	t.Setenv("NODE_ID", "")
	dir := t.TempDir()
	for line, want := range map[string]string{
		"--node-id n":                                                                                    "unix:///PATH",
		"--node-id n --endpoint tcp://0.0.0.0:1":                                                         "unix:///PATH",
		"--node-id n --endpoint unix://csi.sock":                                                         "unix:///PATH",
		"--endpoint unix://" + dir + "/s":                                                                "--node-id",
		"--endpoint unix://" + dir + "/s --node-id n --max-volumes -1":                                   "--max-volumes",
		"--endpoint unix://" + dir + "/s --node-id n --log-format xml":                                   "text or json",
		"--endpoint unix://" + dir + "/s --node-id n --log-level loud":                                   "log-level",
		"--endpoint unix://" + dir + "/s --node-id n --metrics-address nowhere:port --state-dir " + dir:  "Prometheus",
		"--endpoint unix://" + dir + "/" + strings.Repeat("x", 120) + " --node-id n --metrics-address= ": "listen on",
		"plugin":     "unknown command",
		"host extra": "unknown command",
		"host --state-dir " + dir + " --cache-min-free 10%":           "--cache-min-free",
		"host --state-dir " + dir + " --max-daemons -1":               "--max-daemons",
		"host --state-dir " + dir + " --allow-address here":           "--allow-address",
		"host --state-dir " + dir + " --max-daemons-per-namespace -1": "--max-daemons-per-namespace",
		"host --state-dirs": "unknown flag",
	} {
		var out, said bytes.Buffer
		if code := run(t.Context(), strings.Fields(line), &out, &said); code != 1 || !strings.Contains(said.String(), want) {
			t.Errorf("%s: exit code %d, %q, want 1 and %q", line, code, said.String(), want)
		}
	}
}

func TestHelpTeaches(t *testing.T) {
	var out, said bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &out, &said); code != 0 {
		t.Fatal(said.String())
	}
	_, err := volume.Parse(volume.Request{Attributes: map[string]string{"unknown": ""}})
	_, attributes, found := strings.Cut(fmt.Sprint(err), ": there are ")
	if !found {
		t.Fatalf("an unknown attribute gives %v, which lists no known ones", err)
	}
	secrets := []string{"AWS_SECRET_ACCESS_KEY", "credentials.json", "AZURE_STORAGE_CONNECTION_STRING", "HF_TOKEN", ".dockerconfigjson"}
	for _, want := range slices.Concat(strings.Split(attributes, ", "), secrets, []string{"host", "--endpoint"}) {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the help does not name %s", want)
		}
	}
	if strings.Contains(out.String(), insideName) {
		t.Error("the help shows what is not for people")
	}
}
