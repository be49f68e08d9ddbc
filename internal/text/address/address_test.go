package address

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestSources(t *testing.T) {
	for source, want := range map[string]string{
		"s3://bucket/x": "s3", "gs://bucket/x": "gs", "az://account/c": "az", "abfss://c@account.dfs.core.windows.net/x": "az", "http://h/": "http", "https://h/": "http", "ftp://h/": "", "s3": "", "/data/s3://x": "", "./a://b": "", "": "",
	} {
		var name string
		if s := Of(source); s.Names != nil {
			name = s.Names[0]
		}
		remote := want != "" || source == "ftp://h/"
		if name != want || IsRemote(source) != remote {
			t.Errorf("%q: scheme %q, remote %v", source, name, IsRemote(source))
		}
	}
}

// TestPythonKnowsTheSchemes compares the list in the Python package, which tells its users what a mount reads.
func TestAddressesThatLostASlash(t *testing.T) {
	for path, want := range map[string]string{
		"s3:/bucket/pile": "s3://bucket/pile", "/data/hf:/org/name": "hf://org/name", "s3://bucket": "", "/data/s3": "", "/data/of:/others": "", ":/": "",
	} {
		if got := Meant(path); got != want {
			t.Errorf("%s means %q, want %q", path, got, want)
		}
	}
}

func TestPythonKnowsTheSchemes(t *testing.T) {
	text, err := os.ReadFile("../../../python/hbmfs/_lib/_address.py")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range Schemes() {
		for _, name := range s.Names {
			names = append(names, fmt.Sprintf("%q", name))
		}
	}
	if want := "_SCHEMES = (" + strings.Join(names, ", ") + ")"; !strings.Contains(string(text), want+"\n") {
		t.Errorf("_address.py lacks the line %s", want)
	}
}
