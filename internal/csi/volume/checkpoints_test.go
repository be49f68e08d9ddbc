package volume

import (
	"slices"
	"strings"
	"testing"
)

func TestCheckpoints(t *testing.T) {
	request := func(pairs ...string) Request {
		r := Request{ID: "v", MountGroup: "2000", Attributes: map[string]string{"source": "/ckpt/team/run", "checkpoints": "true", ephemeral: "true", PodNamespace: "team"}}
		for i := 0; i < len(pairs); i += 2 {
			r.Attributes[pairs[i]] = pairs[i+1]
		}
		return r
	}
	local, err := Parse(request("showViews", "true"))
	if err != nil || !local.Checkpoints || local.Group != "2000" || local.Asked() != "" || local.Cached() || !slices.Equal(local.Flags, []string{"--show-views=true"}) {
		t.Errorf("%+v, %v", local, err)
	}
	r := request("drain", "s3://b/run?region=r", "keep", "3", "drainRate", "500MB/s", "connections", "8")
	r.Secrets = map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
	drained, err := Parse(r)
	if err != nil || drained.Auth != AuthSecret || drained.Destination() != "s3://b/run?region=r" || len(drained.Credentials) == 0 ||
		!slices.Equal(drained.Flags, []string{"--connections=8", "--drain-rate=500MB/s", "--keep=3"}) {
		t.Errorf("%+v, %v", drained, err)
	}
	if drained.Key() == local.Key() || strings.Contains(strings.Join(drained.Flags, " "), "2000") {
		t.Error("two volumes are one, or the group is an option of the daemon")
	}
	open, err := Parse(request("drain", "s3://b/run", "authentication", "anonymous"))
	if err != nil || open.Destination() != "s3://b/run?anonymous=true" || open.Address() != "/ckpt/team/run" {
		t.Errorf("%+v, %v", open, err)
	}
	if w, err := Parse(Request{ID: "v", Attributes: map[string]string{"source": "/data", "checkpoints": "false"}}); err != nil || w.Checkpoints || w.Key() != (Spec{Source: "/data", Auth: AuthAnonymous}).Key() {
		t.Errorf("a dataset: %+v, %v", w, err)
	}
	for want, r := range map[string]Request{
		"checkpoints=\"1\"": request("checkpoints", "1"), "umask": request("umask", "22"), "cacheSegment": request("cacheSegment", "1MiB"), "patience": request("patience", "1m"),
		"keep": request("keep", "0", "drain", "s3://b/r"), "drainRate": request("drainRate", "fast", "drain", "s3://b/r"), "connections is about the drain": request("connections", "2"),
		"drain has a # in it": request("drain", "s3://b/r#x"), "option \"profil\"": request("drain", "s3://b/r?profil=x"), "not for an inline volume": request("drain", "s3://b/r", "connections", "4000"),
	} {
		if _, err := Parse(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	r = request()
	r.Secrets = map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
	if _, err := Parse(r); err == nil || !strings.Contains(err.Error(), "drain") {
		t.Errorf("a secret without a drain: %v", err)
	}
	r = request()
	r.MountGroup = "-1"
	if _, err := Parse(r); err == nil {
		t.Error("a group that is none")
	}
}
