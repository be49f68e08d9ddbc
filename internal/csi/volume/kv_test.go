package volume

import (
	"strings"
	"testing"
	"time"
)

func TestKV(t *testing.T) {
	request := func(pairs ...string) Request {
		r := Request{ID: "v", MountGroup: "2000", Attributes: map[string]string{"kv": "/nvme/kv/team/llama", "size": "200GiB", ephemeral: "true", PodNamespace: "team"}}
		for i := 0; i < len(pairs); i += 2 {
			r.Attributes[pairs[i]] = pairs[i+1]
		}
		return r
	}
	disk, err := Parse(request())
	if err != nil || !disk.KV || disk.Directory() != "/nvme/kv/team/llama" || disk.Size != 200<<30 || disk.Memory != 0 || disk.KeepFor != 10*time.Minute ||
		disk.Group != "2000" || len(disk.Flags) > 0 || disk.Asked() != "" || disk.Cached() || !disk.Written() {
		t.Errorf("%+v, %v", disk, err)
	}
	both, err := Parse(request("memory", "32GiB", "keepFor", "0", "logLevel", "debug"))
	if err != nil || both.Memory != 32<<30 || both.KeepFor != 0 || both.Key() == disk.Key() || len(both.Flags) != 1 {
		t.Errorf("%+v, %v", both, err)
	}
	same, err := Parse(request("kv", "/nvme/kv/team/llama/", "size", "0.1953125TiB", "memory", "0", "keepFor", "600s"))
	if err != nil || same.Key() != disk.Key() {
		t.Errorf("the same in other words is another volume: %+v, %v", same, err)
	}
	for want, r := range map[string]Request{
		"want an absolute directory": request("kv", ""), "control character": request("kv", "/a\nb"), "without ., ..": request("kv", "/a/../b"),
		"source and kv": request("source", "/data"), "not for a KV volume": request("authentication", "anonymous"), "keepFor=\"-1s\"": request("keepFor", "-1s"),
		"size=\"0\"": request("size", "0"), "memory=\"512KiB\"": request("memory", "512KiB"), "logLevel": request("logLevel", "loud"),
	} {
		if _, err := Parse(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, name := range []string{"size", "memory", "keepFor"} {
		if _, err := Parse(Request{ID: "v", Attributes: map[string]string{"source": "/data", name: "1h"}}); err == nil || !strings.Contains(err.Error(), "KV volumes") {
			t.Errorf("%s of a dataset: %v", name, err)
		}
	}
	r := request()
	r.Secrets = map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
	if _, err := Parse(r); err == nil || !strings.Contains(err.Error(), "secret") {
		t.Errorf("a secret: %v", err)
	}
	r = request()
	r.MountGroup = "-1"
	if _, err := Parse(r); err == nil {
		t.Error("a group that is none")
	}
}
